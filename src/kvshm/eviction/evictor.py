# SPDX-License-Identifier: Apache-2.0
"""The elected evictor: of all processes that have one, one keeps the reserve of marks by its
policy; the others stand by, and one of them goes on within a moment when it dies."""
from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from kvshm.core import Arena
from kvshm.errors import ArenaReplaced, InvalidArgument
from kvshm.eviction.election import elect, resign
from kvshm.eviction.marker import AnyScorer, Marker, MarkReport
from kvshm.eviction.marks import MOST_MARKS, marks_left

LOOK = 0.05  # seconds between two looks at the reserve: one word of the arena, if it is full
STAND_BY = 0.2  # seconds between two tries to be elected
ENOUGH = 1.0  # seconds at most, after a look that found enough free blocks
EMPTY = 5.0  # seconds at most, while the policy finds no victim
WORST = 60.0  # seconds at most, while it raises

Tell = Callable[..., None]
log = logging.getLogger("kvshm")


def watermarks(arena: Arena, low: float, high: float) -> tuple[int, int]:
    """In blocks. low, high: blocks, or shares of the arena as floats up to 1.0; brought down
    together to what the ring of marks holds, and to at least one block."""
    blocks = [mark * arena.blocks if isinstance(mark, float) else mark for mark in (low, high)]
    if not (0 <= blocks[0] <= blocks[1] <= arena.blocks):  # NaN, too
        raise InvalidArgument(f"watermarks: expected 0 <= low <= high <= {arena.blocks} blocks or "
                              f"1.0, got {low} and {high}")
    scale = min(1.0, MOST_MARKS / max(1.0, blocks[1]))
    most = max(1, math.floor(blocks[1] * scale))
    return min(most, max(1, math.floor(blocks[0] * scale))), most


class Evictor:
    """Keeps between `low` and `high` blocks free or marked, by `policy`, while it is elected.

    policy: as mark_victims. share: of one core at most, for looks and refills together; meanwhile
    allocations go by the arena's own policy. tell(event, **facts), from the thread that works:
    "elected", "standing_by", "refill" (seconds, report), "policy_failed" (error), "policy_nan",
    "policy_empty", "policy_works"; without it the first of each kind is logged.

    A policy that raises, or gives nonsense, costs nothing but its marks. Calls of one object: one
    thread at a time. start() works in a thread of its own, until close().
    """

    def __init__(self, arena: Arena, policy: AnyScorer, low: float = 0.02, high: float = 0.05, *,
                 share: float = 0.1, tell: Tell | None = None) -> None:
        if not 0 < share <= 1:
            raise InvalidArgument(f"share: expected a part of one core up to 1.0, got {share}")
        self.arena, self.policy, self.share = arena, policy, share
        self.low, self.high = watermarks(arena, low, high)
        self.elected = False
        self._tell: Tell = tell or self._log
        self._told: set[str] = set()  # troubles that last, or were logged
        self._standing_by = False
        self._rest = 0.0  # seconds, grown while there is trouble
        self._marker: Marker | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self) -> float:
        """Try to be elected, or look at the reserve and refill it. Returns the seconds until the
        next step is worth it. Raises what elect() raises, of the policy nothing."""
        if not self.elected and not self._become():
            return STAND_BY
        assert self._marker is not None
        if marks_left(self.arena) >= self.low:
            return LOOK
        begin = time.perf_counter()
        try:
            report = self._marker.run_once()
        except ArenaReplaced:
            raise
        except Exception as error:  # the policy's
            return self._failed(error, time.perf_counter() - begin)
        return self._worked(report, time.perf_counter() - begin)

    def _become(self) -> bool:
        if not elect(self.arena, "evictor"):
            if not self._standing_by:
                self._tell("standing_by")
            self._standing_by = True
            return False
        self.elected, self._standing_by = True, False
        # Marks that the last holder left count as they stand.
        self._marker = Marker(self.arena, self.low, self.high, self.policy)
        self._tell("elected")
        return True

    def _failed(self, error: Exception, seconds: float) -> float:
        kind = f"policy_failed {type(error).__name__}"
        if kind not in self._told:
            self._told.add(kind)
            self._tell("policy_failed", error=error)
        self._rest = min(WORST, max(1.0, 2 * self._rest))
        return max(self._rest, self._pause(seconds))

    def _worked(self, report: MarkReport, seconds: float) -> float:
        assert self._marker is not None
        if not report.wanted:  # enough is free
            return max(LOOK, min(ENOUGH, 50 * seconds))
        self._tell("refill", report=report, seconds=seconds)
        if self._marker.nan:
            self._once("policy_nan", scores=self._marker.nan)
        if report.marked:
            if any(kind.startswith("policy_failed") for kind in self._told):
                self._tell("policy_works")
                self._told = {k for k in self._told if not k.startswith("policy_failed")}
            self._rest = 0.0
        else:
            self._once("policy_empty", negative=self._marker.negative)
            self._rest = min(EMPTY, max(LOOK, 2 * self._rest))
        return max(self._rest, self._pause(seconds))

    def _pause(self, seconds: float) -> float:
        return max(LOOK, seconds * (1 / self.share - 1))

    def _once(self, event: str, **facts: Any) -> None:
        if event not in self._told:
            self._told.add(event)
            self._tell(event, **facts)

    def _log(self, event: str, **facts: Any) -> None:
        if event == "policy_failed":
            log.error("kvshm: the eviction policy failed; the arena's own goes on",
                      exc_info=facts["error"])
        elif event in ("policy_nan", "policy_empty"):
            log.warning("kvshm: the eviction policy: %s %s", event, facts)
        elif event != "refill":
            log.info("kvshm: evictor of arena %s: %s", self.arena.name, event.replace("_", " "))

    def run(self, stop: threading.Event) -> None:
        """Step after step, until `stop` is set or the arena is gone (ArenaReplaced)."""
        while not stop.is_set():
            stop.wait(self.step())

    def start(self) -> None:
        """Works from now on, in a daemon thread; it ends with close(), or when the arena goes."""
        def work() -> None:
            try:
                self.run(self._stop)
            except Exception as error:
                log.warning("kvshm: the evictor of arena %s ends: %s", self.arena.name, error)
        if self._thread is not None:
            raise InvalidArgument("this evictor was started already")
        self._thread = threading.Thread(target=work, name="kvshm evictor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and lets the post go; the marks stay. Before the arena's close()."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self.elected:
            self.elected = False
            resign(self.arena, "evictor")
