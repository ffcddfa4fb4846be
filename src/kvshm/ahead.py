# SPDX-License-Identifier: Apache-2.0
"""What the requests in line will need, brought from the tier into memory before their turn."""
from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

from kvshm.records import LoadState

if TYPE_CHECKING:
    from kvshm.core import Arena
    from kvshm.lease import Lease


class Ahead:
    """Prefetches for requests that wait, in their order. Any thread.

    arrived() when a request is queued, begun() when it is served or given up. `limit` is how many
    blocks may be asked for ahead of what is being served, so that a long line does not push out of
    memory what the next one needs; 0: no limit, all is asked for on arrival.
    """

    def __init__(self, arena: Arena, limit: int = 0) -> None:
        self._arena, self._limit = arena, limit
        self._lock = threading.Lock()
        self._line: dict[Hashable, _Waiting] = {}
        self.queued = 0  # transfers begun because of it, since the start
        self._held: list[Lease] = []

    def arrived(self, name: Hashable, keys: Sequence[Any]) -> int:
        """keys: of its blocks, as match() takes them, once a layer or cache group. How many
        transfers were queued."""
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
        self._let_go()
        room = self._limit - sum(one.asked for one in self._line.values())
        for one in self._line.values():
            more = one.left if not self._limit else min(one.left, room)
            if more > 0:
                queued += one.ask(self._prefetch, more)
                room -= more
        self.queued += queued
        return queued

    def _let_go(self) -> None:
        """Of what has come; of all, where nobody waits any more."""
        held, self._held = self._held, []
        for lease in held:
            if self._line and lease.loading:
                self._held.append(lease)
            else:
                lease.release()

    def _prefetch(self, keys: Any) -> int:
        """A look-up that loads, given back when all has come: what it brought stays in memory."""
        lease = self._arena.match(keys, touch=False, load=True)
        queued = 0 if lease.states is None else int((lease.states != LoadState.MEMORY).sum())
        if lease.loading:
            self._held.append(lease)
        else:
            lease.release()
        return queued


class _Waiting:
    def __init__(self, keys: Sequence[Any]) -> None:
        self._keys = keys
        self._blocks = max(map(len, keys), default=0)
        self.asked = 0

    @property
    def left(self) -> int:
        return self._blocks - self.asked

    def ask(self, prefetch: Callable[[Any], int], more: int) -> int:
        begin, self.asked = self.asked, self.asked + more
        return sum(prefetch(own[begin:begin + more]) for own in self._keys if begin < len(own))
