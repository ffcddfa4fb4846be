# SPDX-License-Identifier: Apache-2.0
"""How much of a request lies in the arena, and holding it: all or nothing for each boundary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import kvshm

from .groups import Group, boundary_tokens
from .keys import GroupKeys


@dataclass
class Part:
    """Blocks first .. first + len(lease) of one group, held."""

    group: Group
    first: int
    lease: kvshm.Lease


class Hold:
    """What a request would load: everything from `local` to `boundary` tokens, held."""

    def __init__(self, local: int, boundary: int, parts: list[Part]) -> None:
        self.local, self.boundary, self.parts = local, boundary, parts

    @property
    def tokens(self) -> int:
        return self.boundary - self.local

    def cut(self, boundary: int) -> None:
        """Give back what lies beyond. Not for partial groups: their window would move."""
        for part in self.parts:
            keep = min(len(part.lease), max(0, boundary // part.group.block_tokens - part.first))
            part.lease.trim(keep)
        self.parts = [part for part in self.parts if len(part.lease)]
        self.boundary = boundary

    def release(self) -> None:
        for part in self.parts:
            part.lease.release()
        self.parts = []


def find(arena: kvshm.Arena, groups: Sequence[Group], keys: Sequence[GroupKeys], local: int,
         limit: int, tag: str) -> Hold:
    """The longest continuation of `local` tokens, up to `limit`, of which every group has what it
    needs. An empty Hold if there is none."""
    unit = boundary_tokens(groups)
    boundary = limit // unit * unit
    hold = Hold(local, local, [])
    try:
        for group, own in zip(groups, keys):
            if boundary <= local:
                break
            if not group.partial:
                boundary = _prefix(arena, group, own, local, boundary, tag, hold) // unit * unit
        if boundary > local and any(group.partial for group in groups):
            boundary = _windows(arena, groups, keys, local, boundary, unit, tag, hold)
    except BaseException:
        hold.release()
        raise
    if boundary <= local:
        hold.release()
        return Hold(local, local, [])
    hold.cut(boundary)  # windows end there already
    return hold


def extend(arena: kvshm.Arena, groups: Sequence[Group], keys: Sequence[GroupKeys], hold: Hold,
           limit: int, tag: str) -> None:
    """One more look behind the end of a hold: cheap, for a request that is tried again and again.
    Only with a single group; with several the hold stays as it is."""
    if len(groups) > 1 or groups[0].partial:
        return
    tokens = groups[0].block_tokens
    first, last = hold.boundary // tokens, limit // tokens
    if first < last:
        lease = arena.match(keys[0][first:last], tag=tag)
        if lease:
            hold.parts.append(Part(groups[0], first, lease))
            hold.boundary += len(lease) * tokens


def _prefix(arena: kvshm.Arena, group: Group, keys: GroupKeys, local: int, boundary: int,
            tag: str, hold: Hold) -> int:
    first = local // group.block_tokens
    lease = arena.match(keys[first:boundary // group.block_tokens], tag=tag)
    if lease:
        hold.parts.append(Part(group, first, lease))
    return (first + len(lease)) * group.block_tokens


def _windows(arena: kvshm.Arena, groups: Sequence[Group], keys: Sequence[GroupKeys], local: int,
             boundary: int, unit: int, tag: str, hold: Hold) -> int:
    """The last boundary whose windows are all there: looked for by presence, then held."""
    partial = [(group, own) for group, own in zip(groups, keys) if group.partial]
    there = [arena.presence(own[:boundary // group.block_tokens]) & kvshm.Presence.G2
             for group, own in partial]
    while boundary > local:
        spans = [(max(group.first_needed(boundary), local // group.block_tokens),
                  boundary // group.block_tokens) for group, _ in partial]
        if all(mask[first:last].all() for mask, (first, last) in zip(there, spans)):
            if _hold_windows(arena, partial, spans, tag, hold):
                return boundary
        boundary -= unit
    return local


def _hold_windows(arena: kvshm.Arena, partial: Sequence[tuple[Group, GroupKeys]],
                  spans: Sequence[tuple[int, int]], tag: str, hold: Hold) -> bool:
    taken = []
    for (group, own), (first, last) in zip(partial, spans):
        lease = arena.match(own[first:last], tag=tag)
        taken.append(Part(group, first, lease))
        if len(lease) < last - first:  # evicted since we looked
            for part in taken:
                part.lease.release()
            return False
    hold.parts += [part for part in taken if len(part.lease)]
    return True
