# SPDX-License-Identifier: Apache-2.0
"""Of blocks that are equally old the one goes that is cheapest to compute again: attention makes a
block dearer the deeper it stands.

    kvshm agent ARENA --policy kv_policy_example.cost:Cheapest
"""
from __future__ import annotations

from typing import Any

import numpy as np
from kvshm.eviction import age, depth


class Cheapest:
    """An object with parameters. `kvshm agent` makes one without arguments."""

    def __init__(self, double_at: int = 2048) -> None:
        self.double_at = double_at  # the block of a chain that costs twice as much as the first

    def __call__(self, table: Any, now: int) -> Any:
        """table: all blocks, of BLOCK_DTYPE. One number for each; the greatest goes first."""
        scores = age(table, now) / (1 + depth(table) / self.double_at)
        return np.where(table["tenant"] == 0, scores, scores / 4)  # tenants' blocks stay longer
