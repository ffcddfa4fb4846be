# SPDX-License-Identifier: Apache-2.0
"""What the requests in line will need, brought from the tier into memory before their turn."""
from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvshm.records import Presence

if TYPE_CHECKING:
    from kvshm.core import Arena

HERE = Presence.G2 | Presence.FILLING


class Ahead:
    """Prefetches for requests that wait, in their order. Any thread.

    arrived() when a request is queued, begun() when it is served or given up. `limit` is how many
    blocks may be asked for ahead of what is being served, so that a long line does not push out of
    memory what the next one needs; 0: no limit, all is asked for on arrival.

    Whoever moves the arena's blocks brings them, so this process needs no tier of its own. What has
    come is held by nobody.
    """

    def __init__(self, arena: Arena, limit: int = 0) -> None:
        self._arena, self._limit = arena, limit
        self._sees = arena.tier is not None  # what is on disk
        self._lock = threading.Lock()
        self._line: dict[Hashable, _Waiting] = {}
        self.queued = 0  # keys asked for because of it, since the start

    def arrived(self, name: Hashable, keys: Sequence[Any]) -> int:
        """keys: of its blocks, as match() takes them, once a layer or cache group. How many were
        asked for."""
        with self._lock:
            self._line[name] = _Waiting(keys)
            return self._go_on()

    def begun(self, name: Hashable) -> int:
        """It waits no longer: others may go ahead of it."""
        with self._lock:
            self._line.pop(name, None)
            return self._go_on()

    def _go_on(self) -> int:
        """Ask for what there is room for, from the head of the line on."""
        queued = 0
        room = self._limit - sum(one.asked for one in self._line.values())
        for one in self._line.values():
            more = one.left if not self._limit else min(one.left, room)
            if more > 0:
                before = one.asked
                queued += one.ask(self._prefetch, more)
                room -= more
                if one.asked < before + more:
                    break  # the mover's queue is full
        self.queued += queued
        return queued

    def _prefetch(self, keys: Any) -> tuple[int, int]:
        """Asks for what is not in memory or on its way; how many, and of how many keys, from the
        first on, it found room for those."""
        there = self._arena.presence(keys)
        wanted = there & int(HERE) == 0
        if self._sees:  # behind the first that is nowhere nothing is a hit
            nowhere = np.flatnonzero(there == 0)
            wanted[nowhere[0] if len(nowhere) else len(there):] = False
        places = np.flatnonzero(wanted)
        queued = self._arena.prefetch([bytes(keys[i]) for i in places]) if len(places) else 0
        return queued, int(places[queued]) if queued < len(places) else len(there)


class _Waiting:
    def __init__(self, keys: Sequence[Any]) -> None:
        self._keys = keys
        self._blocks = max(map(len, keys), default=0)
        self.asked = 0

    @property
    def left(self) -> int:
        return self._blocks - self.asked

    def ask(self, prefetch: Callable[[Any], tuple[int, int]], more: int) -> int:
        """Blocks of which not all parts found room stay to be asked for."""
        begin, queued = self.asked, 0
        for own in self._keys:
            if begin < len(own):
                part = own[begin:begin + more]
                now, gone = prefetch(part)
                queued += now
                more = more if gone == len(part) else gone
        self.asked = begin + more
        return queued
