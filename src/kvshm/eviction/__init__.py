# SPDX-License-Identifier: Apache-2.0
"""Which block goes when space is needed: the policy table of an arena, and victims marked
beforehand. What is decided here reaches all processes as data; an allocation never calls Python."""
from kvshm.eviction.marker import Marker, MarkReport
from kvshm.eviction.marks import free_blocks, mark_victims, marks_left
from kvshm.eviction.policies import PRESETS, Policy, get_policy, levels, set_policy
from kvshm.eviction.table import BLOCK_DTYPE, block_table

__all__ = [
    "BLOCK_DTYPE",
    "PRESETS",
    "MarkReport",
    "Marker",
    "Policy",
    "block_table",
    "free_blocks",
    "get_policy",
    "levels",
    "mark_victims",
    "marks_left",
    "set_policy",
]
