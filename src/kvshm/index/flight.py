# SPDX-License-Identifier: Apache-2.0
"""Single flight: of all who want the same missing blocks at once, one computes them.

Across processes the announced fill does it: the others find the key being filled and wait. Within
a process the threads would all announce, and all but one would fill privately, so here they queue
up behind the first; who comes later finds the blocks READY.
"""
from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kvshm.core import Arena
from kvshm.errors import TimedOut
from kvshm.fill import Fill
from kvshm.lease import Lease
from kvshm.records import Presence, Status

_SLICE = 0.1

Compute = Callable[[Fill, int], Any]
"""compute(fill, first) writes all blocks of `fill`; block j is that of keys[first + j]."""


class SingleFlight:
    """Gets blocks for the threads of this process. One per arena; share it.

    Fork: a child makes its own, with an arena of its own.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._changed = threading.Condition()
        self._leading: set[bytes] = set()
        self.computed = 0  # blocks that this process computed here
        self.shared = 0  # times a thread waited for what another one was computing

    def get(self, keys: Any, compute: Compute, *, timeout: float, tag: str = "",
            policy: str = "reject") -> Lease:
        """A Lease of all of `keys`, computing what nobody has and nobody is computing.

        An exception from `compute` aborts its fill and passes through; waiting threads then compute
        it themselves. NoSpace passes through, too. TimedOut after `timeout` seconds of waiting for
        others (the time of `compute` itself is not limited).
        """
        rows = np.frombuffer(b"".join(bytes(key) for key in keys), np.uint8).reshape(-1, 16)
        deadline = time.monotonic() + timeout
        while True:
            lease = self._arena.match(rows, tag=tag)
            have = len(lease)
            if have == len(rows):
                return lease
            try:
                first = bytes(rows[have])
                if lease.pending is not None:
                    self.shared += 1
                    self._arena.wait(lease.pending, max(0.0, deadline - time.monotonic()))
                elif self._lead(first, deadline):
                    try:
                        self._compute(rows, have, lease, compute, policy)
                    finally:
                        self._done(first)
            finally:
                lease.release()
            if time.monotonic() >= deadline:
                with self._arena.match(rows) as last:
                    if len(last) == len(rows):
                        return self._arena.match(rows, tag=tag)
                raise TimedOut(f"{len(rows)} blocks: others did not finish within {timeout} s")

    def _lead(self, key: bytes, deadline: float) -> bool:
        """True: this thread computes. False: another one did meanwhile; look again."""
        with self._changed:
            if key not in self._leading:
                self._leading.add(key)
                return True
            self.shared += 1
            while key in self._leading:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, _SLICE))
            return False

    def _done(self, key: bytes) -> None:
        with self._changed:
            self._leading.discard(key)
            self._changed.notify_all()

    def _compute(self, rows: np.ndarray, have: int, lease: Lease, compute: Compute,
                 policy: str) -> None:
        """The missing run behind the held prefix, up to the first key that somebody else has."""
        with self._arena.match(rows[have:have + 1], touch=False) as again:
            if len(again):  # finished between the match and our turn to lead
                return
        # What lies on disk alone is computed: nobody here loads it.
        mask = self._arena.presence(rows[have:]) & (Presence.G2 | Presence.FILLING)
        taken = np.flatnonzero(mask)
        run = int(taken[0]) if len(taken) else len(mask)
        if run == 0:
            if mask[0] & Presence.FILLING:
                return  # announced by another process this instant: wait for it
            run = 1
        with self._arena.allocate(run, keys=rows[have:have + run], after=lease) as fill:
            if fill.status[0] in (Status.EXISTS, Status.PENDING):
                return  # another process was faster
            compute(fill, have)
            self.computed += run
            fill.register(policy).release()
