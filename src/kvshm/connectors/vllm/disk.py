# SPDX-License-Identifier: Apache-2.0
"""What a request needs from the disk: brought into the arena before the engine is told of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import kvshm

from .groups import Group, boundary_tokens
from .keys import GroupKeys

THERE = kvshm.Presence.G2 | kvshm.Presence.G3


class Fetch:
    """Loads of one request, one look-up a group. They end by themselves; `limit` is when nobody
    waits for them any more."""

    def __init__(self, leases: Sequence[kvshm.Lease], firsts: Sequence[int], wait: float) -> None:
        self._leases, self._firsts = leases, firsts
        self._began = time.monotonic()
        self._limit = self._began + wait
        self.late = False  # some were still under way at the limit

    def under_way(self) -> bool:
        """Whether to wait any longer."""
        loading = any([lease.loading for lease in self._leases])  # all are looked at
        self.late = loading and time.monotonic() >= self._limit
        return loading and not self.late

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def came(self) -> list[npt.NDArray[np.intp]]:
        """By group, the blocks of the request that came from the disk."""
        return [first + np.flatnonzero(lease.states == kvshm.LoadState.LOADED)
                for lease, first in zip(self._leases, self._firsts)]

    @property
    def failed(self) -> int:
        return sum(len(lease.failed) for lease in self._leases)

    def release(self) -> None:
        for lease in self._leases:
            lease.release()


def begin(arena: kvshm.Arena, groups: Sequence[Group], keys: Sequence[GroupKeys], local: int,
          limit: int, least: int, wait: float, tag: str) -> Fetch | None:
    """Starts to load what is on disk of the longest continuation of `local` tokens, up to `limit`,
    that memory and disk have together. None: nothing of it is on disk, or it is shorter than
    `least` tokens."""
    there = [arena.presence(own[:limit // group.block_tokens]) for group, own in zip(groups, keys)]
    boundary = _boundary(groups, [mask & THERE != 0 for mask in there], local, limit)
    if boundary - local < max(1, least):
        return None
    spans = [(max(group.first_needed(boundary), local // group.block_tokens),
              boundary // group.block_tokens) for group in groups]
    if not any((mask[first:last] & THERE == kvshm.Presence.G3).any()
               for mask, (first, last) in zip(there, spans)):
        return None
    leases: list[kvshm.Lease] = []
    try:
        for own, (first, last) in zip(keys, spans):
            leases.append(arena.match(own[first:last], touch=False, tag=tag, load=True))
    except BaseException:
        for lease in leases:
            lease.release()
        raise
    return Fetch(leases, [first for first, _ in spans], wait)


def _boundary(groups: Sequence[Group], there: Sequence[npt.NDArray[np.bool_]], local: int,
              limit: int) -> int:
    """The last one for which every group has what it needs."""
    unit = boundary_tokens(groups)
    for group, mask in zip(groups, there):
        limit = min(limit, len(mask) * group.block_tokens)
    boundary = limit // unit * unit
    for group, mask in zip(groups, there):
        if not group.partial:
            first = local // group.block_tokens
            gaps = np.flatnonzero(~mask[first:])
            held = first + (int(gaps[0]) if len(gaps) else max(0, len(mask) - first))
            boundary = min(boundary, held * group.block_tokens // unit * unit)
    while boundary > local:
        if all(mask[max(group.first_needed(boundary), local // group.block_tokens):
                    boundary // group.block_tokens].all()
               for group, mask in zip(groups, there) if group.partial):
            return boundary
        boundary -= unit
    return local
