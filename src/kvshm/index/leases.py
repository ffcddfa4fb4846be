# SPDX-License-Identifier: Apache-2.0
"""Which leases are alive in this process, for reports of what was forgotten.

Nothing is recorded unless asked for: `LeaseRegistry(arena)` sees the leases made from then on.
"""
from __future__ import annotations

import time
import traceback
import weakref
from collections.abc import Iterator
from typing import NamedTuple

from kvshm.core import Arena
from kvshm.lease import Lease


class LiveLease(NamedTuple):
    """A lease that was not released. `age` in seconds; `where`: the stack that made it, or ""."""

    tag: str
    blocks: int
    age: float
    where: str


class LeaseRegistry:
    """The live leases of one arena in this process; keeps none of them alive.

    stacks=True also remembers where each was made (some microseconds a lease). One registry per
    arena; close() ends the recording. Usable from any thread.
    """

    def __init__(self, arena: Arena, *, stacks: bool = False) -> None:
        self._arena: weakref.ref[Arena] = weakref.ref(arena)
        self._stacks = stacks
        self._known: weakref.WeakKeyDictionary[Lease, str] = weakref.WeakKeyDictionary()
        arena.watch_leases(self._note)

    def _note(self, lease: Lease) -> None:
        where = ""
        if self._stacks:
            where = "".join(traceback.format_list(traceback.extract_stack(limit=8)[:-1]))
        self._known[lease] = where

    def __iter__(self) -> Iterator[Lease]:
        return iter([lease for lease in list(self._known) if not lease.released])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def older_than(self, seconds: float, tag: str | None = None) -> list[LiveLease]:
        """Leases held for longer than that, the oldest first; `tag` limits to one."""
        now = time.monotonic()
        found = [
            LiveLease(lease.tag, lease.hits, now - lease.taken_at, self._known.get(lease, ""))
            for lease in self
            if now - lease.taken_at >= seconds and tag in (None, lease.tag)
        ]
        return sorted(found, key=lambda lease: -lease.age)

    def by_tag(self) -> dict[str, int]:
        """Blocks held under each tag; a block counts once for each lease that holds it."""
        held: dict[str, int] = {}
        for lease in self:
            held[lease.tag] = held.get(lease.tag, 0) + lease.hits
        return held

    def report(self, seconds: float = 0.0) -> str:
        """One line a lease, for a log; "" if there is none."""
        lines = []
        for lease in self.older_than(seconds):
            tag = f" {lease.tag!r}" if lease.tag else ""
            lines.append(f"lease{tag}: {lease.blocks} blocks for {lease.age:.1f} s")
            lines += ["  " + line for line in lease.where.splitlines()]
        return "\n".join(lines)

    def close(self) -> None:
        """Stop recording."""
        arena = self._arena()
        if arena is not None:
            arena.watch_leases(None)
        self._known.clear()
