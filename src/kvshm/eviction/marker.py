# SPDX-License-Identifier: Apache-2.0
"""Keeping a reserve: marks are topped up between two watermarks, so that no allocation has to
choose its victims itself."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kvshm.core import Arena
from kvshm.errors import InvalidArgument
from kvshm.eviction.marks import Scorer, free_blocks, mark_new, marks_left

AnyScorer = str | Scorer | Callable[[Any, int], Any]


class MarkReport(NamedTuple):
    """Of one run: free blocks and marks found, how many marks were wanted, and made."""

    free: int
    marks: int
    wanted: int
    marked: int


class Marker:
    """Marks victims when free blocks and marks together fall below `low`, up to `high`.

    low, high: numbers of blocks, or shares of the arena (0.0 to 1.0). policy: as mark_victims. One
    process of an arena should run it; a second one costs marks, nothing else.
    """

    def __init__(self, arena: Arena, low: float, high: float, policy: AnyScorer = "lru") -> None:
        self.arena = arena
        self.low = self._blocks(low)
        self.high = self._blocks(high)
        self.policy = policy
        self.negative = self.nan = 0  # such scores in the last run: never victims
        self._lives = np.zeros(arena.blocks, np.uint64)  # under which a block was marked last
        self._order: deque[int] = deque()  # the marks that may be in the ring, oldest first
        if not 0 <= self.low <= self.high <= arena.blocks:
            raise InvalidArgument(
                f"watermarks: expected 0 <= low <= high <= {arena.blocks} blocks, "
                f"got {self.low} and {self.high}")

    def _blocks(self, mark: float) -> int:
        return round(mark * self.arena.blocks) if isinstance(mark, float) else mark

    def run_once(self) -> MarkReport:
        """One look at the reserve, and the marks that it lacks. Holds and evicts nothing."""
        free, marks = free_blocks(self.arena), marks_left(self.arena)
        # Marks go first in, first out. One that was taken in vain may be made again.
        while len(self._order) > marks:
            self._lives[self._order.popleft()] = 0
        reserve = free + marks
        if reserve >= self.low:
            return MarkReport(free, marks, 0, 0)
        wanted = self.high - reserve
        ids, self.negative, self.nan = mark_new(self.arena, wanted, self.policy, self._lives)
        self._order.extend(ids.tolist())
        return MarkReport(free, marks, wanted, len(ids))
