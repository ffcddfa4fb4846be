# SPDX-License-Identifier: Apache-2.0
"""Which block goes when space is needed: the policy table of an arena, and victims marked
beforehand, by policies of your own (docs/policies.md). What is decided here reaches all processes
as data; an allocation never calls Python."""
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvshm.eviction.election import elect, resign
    from kvshm.eviction.evictor import Evictor
    from kvshm.eviction.fields import age, depth, uses
    from kvshm.eviction.loading import load_policy
    from kvshm.eviction.marker import Marker, MarkReport
    from kvshm.eviction.marks import MOST_MARKS, Scorer, free_blocks, mark_victims, marks_left
    from kvshm.eviction.policies import (
        PRESETS,
        Policy,
        get_policy,
        levels,
        multi_lru,
        set_policy,
    )
    from kvshm.eviction.table import BLOCK_DTYPE, block_table

# Loaded when its first name is used: every process that opens an arena loads `adaptive`, and few
# of them the rest.
_HOME = {
    "election": "elect resign",
    "evictor": "Evictor",
    "fields": "age depth uses",
    "loading": "load_policy",
    "marker": "MarkReport Marker",
    "marks": "MOST_MARKS Scorer free_blocks mark_victims marks_left",
    "policies": "PRESETS Policy get_policy levels multi_lru set_policy",
    "table": "BLOCK_DTYPE block_table",
}
_MODULE = {name: module for module, names in _HOME.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"kvshm.eviction.{_MODULE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "BLOCK_DTYPE",
    "Evictor",
    "MOST_MARKS",
    "PRESETS",
    "MarkReport",
    "Marker",
    "Policy",
    "Scorer",
    "age",
    "block_table",
    "depth",
    "elect",
    "free_blocks",
    "get_policy",
    "levels",
    "load_policy",
    "mark_victims",
    "marks_left",
    "multi_lru",
    "resign",
    "set_policy",
    "uses",
]
