# SPDX-License-Identifier: Apache-2.0
"""Brings into memory what the tier has of prompts, and holds it until the end, so that the room
for one block is never that of another one of them."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

WINDOW = 256 << 20  # bytes under way at most: small beside what the slowest disk does in DEADLINE
DEADLINE = 60.0  # of one transfer


@dataclass
class Counts:
    """Blocks of a prompt. found: were in memory; lifted: were on disk, are in memory now; left: are
    on disk alone, since it was stopped; missing: an engine has to compute them, failed of them
    because a transfer failed."""

    blocks: int = 0
    found: int = 0
    lifted: int = 0
    left: int = 0
    failed: int = 0

    @property
    def missing(self) -> int:
        return self.blocks - self.found - self.lifted - self.left


class Lifter:
    """limit: how many blocks it may hold. stopped: why it lifts no more ("limit", "full", "tier",
    "timeout"); it goes on to look what there is."""

    def __init__(self, arena: Any, limit: int, deadline: float,
                 advance: Callable[[int], None]) -> None:
        self.limit, self.stopped, self.why = limit, "", ""
        self.held: set[bytes] = set()
        self._arena, self._deadline, self._advance = arena, deadline, advance
        self._window = max(1, min(1024, WINDOW // arena.block_bytes))
        self._leases: list[Any] = []

    def lift(self, keys: Any) -> Counts:
        from kvshm import Presence

        counts = Counts(blocks=len(keys))
        there = self._arena.presence(keys) if len(keys) else []
        prefix = next((i for i, one in enumerate(there) if not one & (Presence.G2 | Presence.G3)),
                      len(keys))
        names = [bytes(key) for key in keys[:prefix]]
        at = 0
        while at < prefix and not self.stopped:
            if time.monotonic() >= self._deadline:
                self.stop("timeout", "the time is over")
                break
            end = self._fit(names, at, min(prefix, at + self._window))
            reached = self._some(keys, names, at, end, counts) if end > at else at
            self._advance(reached - at)
            at = reached
            if at < end and not self.stopped:  # a hole: what lies behind it is of no use
                return counts
        for one in there[at:prefix]:
            if one & Presence.G2:
                counts.found += 1
            else:
                counts.left += 1
        return counts

    def _fit(self, names: Sequence[bytes], at: int, end: int) -> int:
        """Up to where there is room for those that are not held yet."""
        room = self.limit - len(self.held)
        for i in range(at, end):
            if names[i] not in self.held:
                if not room:
                    if i == at:
                        self.stop("limit", f"{self.limit} blocks are held, and no more are to be")
                    return i
                room -= 1
        return end

    def _some(self, keys: Any, names: Sequence[bytes], at: int, end: int, counts: Counts) -> int:
        """keys[at:end]; up to where they are held now."""
        from kvshm import LoadState

        first = max(0, at - 1)  # the block before them, too: it is the parent of the next one
        lease = self._arena.match(keys[first:end], load=True, tag="warmup")
        begun = lease.states
        done = lease.wait(max(0.0, self._deadline - time.monotonic()))
        states, reached = lease.states, first + len(lease)
        for was, now in zip(begun[at - first:reached - first], states[at - first:reached - first],
                            strict=True):
            own = bool(now == LoadState.LOADED and was != LoadState.AWAITED)
            counts.lifted += own
            counts.found += not own
        new = set(names[first:reached]) - self.held
        self.held |= new
        if new or not done:
            self._leases.append(lease)
        else:
            lease.release()
        if reached < end:
            failed = int((states == LoadState.FAILED).sum())
            counts.failed += failed
            self._ended_early(done, bool(failed), keys[reached:reached + 1])
        return reached

    def _ended_early(self, done: bool, failed: bool, key: Any) -> None:
        from kvshm import Presence, TierState

        tier = self._arena.tier
        if not done:
            self.stop("timeout", "the time is over")
        elif tier is not None and tier.state not in (TierState.OK, TierState.NO_SPACE):
            why = f" ({tier.why})" if tier.why else ""
            self.stop("tier", f"the tier is {TierState(tier.state).name.lower()}{why}")
        elif not failed and self._arena.presence(key)[0] & Presence.G3:
            self.stop("full", "every other block of the arena is held or being filled")

    def stop(self, what: str, why: str) -> None:
        self.stopped, self.why = what, why

    def close(self) -> None:
        for lease in self._leases:
            lease.release()
        self._leases.clear()
