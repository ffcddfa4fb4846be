# SPDX-License-Identifier: Apache-2.0
"""The invariants I1 to I16 of docs/protocol.md, by the independent reader.

On a quiet arena none is broken. What a living process has in hand is no fault here, where the
core's own check, meant for quiet arenas, counts it: a block in EVICTING whose one holder lives
(I6), and the moment in it between the new life number and the new word (I2). A process that is
stopped may have been so between two words (I10, I13), which no waiting shows.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from . import layout, queues
from .snapshot import Snapshot
from .view import Array, is_ready

MEANING = {
    1: "every block is in a state that exists, with holders that fit it",
    2: "the generation in the word is the low bits of the life number",
    3: "every index entry names a block whose key belongs at that place",
    4: "no two index entries have one key",
    5: "a READY block has at most one entry, a duplicate or private one none",
    6: "no block is left half-way, in EVICTING",
    7: "every holder lives",
    8: "free + filling + held + inactive + evicting = total",
    9: "READY has a key, FREE has none",
    10: "every FREE block is in the free map",
    11: "every holder has its region bit",
    12: "every tentative entry has a living filler",
    13: "who holds a duplicate holds its primary, of the same key",
    14: "the tenant of every block is known to have some",
    15: "a priority is at most 100, and what is for a while only says until when",
    16: "of what waits for the mover no more is ended than taken, or taken than there is room for",
}
MOST = 100_000  # findings of one kind that are kept


class Broken(NamedTuple):
    """`words`: what it was seen in; a block that moved on meanwhile shows others."""

    invariant: int
    id: int
    what: str
    words: tuple[int, ...]


def check(s: Snapshot, quiet: bool = False) -> Iterator[Broken]:
    """All that is broken in this snapshot. quiet: nobody is working, so EVICTING is a fault."""
    for test in _TESTS:
        yield from test(s)
    if quiet:
        yield from _at(s, 6, (s.states == layout.EVICTING) & s.lives(s.holders),
                       "EVICTING on an arena that should be quiet")


def in_transition(s: Snapshot) -> int:
    """Blocks that a living process is taking from one life to the next."""
    between = (s.states == layout.FREE) & ~s.free & s.halted_near()
    return int(np.count_nonzero((s.states == layout.EVICTING) & s.lives(s.holders) | between))


def unfindable(s: Snapshot) -> int:
    """READY blocks that can still be had, but that no entry leads to: lost to every match."""
    return int(np.count_nonzero((s.states == layout.READY) & (s.entries_of == 0)))


def _at(s: Snapshot, number: int, wrong: Array, what: str, *more: Array) -> Iterator[Broken]:
    """A finding for each block where `wrong`; `more`: words that it was seen in, beside its own."""
    for i in np.flatnonzero(wrong)[:MOST]:
        yield Broken(number, int(i), what, (int(s.words[i]), *(int(m[i]) for m in more)))


def _states(s: Snapshot) -> Iterator[Broken]:
    known = np.isin(s.states, list(layout.STATES))
    held = s.holders != 0
    one = held & ((s.holders & (s.holders - np.uint64(1))) == 0)
    yield from _at(s, 1, ~known, "a state that does not exist")
    yield from _at(s, 1, (s.states == layout.FREE) & held, "FREE, but held")
    needs = (s.states == layout.FILLING) | (s.states == layout.READY_LAST)
    yield from _at(s, 1, needs & ~held, "FILLING or READY_LAST, but held by nobody")
    yield from _at(s, 1, (s.states == layout.EVICTING) & ~one, "EVICTING without its one holder")


def _generations(s: Snapshot) -> Iterator[Broken]:
    gen = s.words >> np.uint64(layout.GEN_SHIFT)
    mask = np.uint64(layout.GEN_MASK)
    # In EVICTING the life number is counted up before the word says so.
    fits = (gen == (s.seq & mask)) | ((s.states == layout.EVICTING)
                                      & (gen == ((s.seq - np.uint64(1)) & mask)))
    yield from _at(s, 2, ~fits, "the generation does not fit the life number", s.seq)


def _entries(s: Snapshot) -> Iterator[Broken]:
    for value in s.stray_entries[:MOST]:
        yield Broken(3, layout.NONE, "an index entry names no block", (int(value),))
    empty = (s.states[s.id] == layout.FREE) | s.keyless[s.id]
    yield from _of_entries(s, 3, empty, "an index entry of a block without a key")
    lo, hi = s.lo[s.id], s.hi[s.id]
    tag = (s.entry >> np.uint64(32)) & np.uint64(layout.TAG_MASK)
    bucket = (s.at // layout.WAYS).astype(np.uint64)
    fits = (tag == (lo & np.uint64(layout.TAG_MASK))) & (
        (bucket == _scaled(lo, s.buckets)) | (bucket == _scaled(hi, s.buckets)))
    yield from _of_entries(s, 3, ~empty & ~fits, "an index entry does not fit its block's key")


def _of_entries(s: Snapshot, number: int, wrong: Array, what: str) -> Iterator[Broken]:
    for j in np.flatnonzero(wrong)[:MOST]:
        i = int(s.id[j])
        yield Broken(number, i, what, (int(s.entry[j]), int(s.words[i]), int(s.lo[i])))


def _scaled(x: Array, n: int) -> Array:
    """x * n / 2^64 for n < 2^32, in 64-bit steps: which of n buckets x falls into."""
    half, low, count = np.uint64(32), np.uint64(0xFFFFFFFF), np.uint64(n)
    return np.asarray(((x >> half) * count + (((x & low) * count) >> half)) >> half)


def _rivals(s: Snapshot) -> Iterator[Broken]:
    ids = np.unique(s.id)
    ids = ids[~s.keyless[ids]]
    ids = ids[np.lexsort((s.lo[ids], s.hi[ids]))]
    same = (s.lo[ids[1:]] == s.lo[ids[:-1]]) & (s.hi[ids[1:]] == s.hi[ids[:-1]])
    for j in np.flatnonzero(same)[:MOST]:
        a, b = int(ids[j]), int(ids[j + 1])
        yield Broken(4, b, f"has the key of block {a}, and both have an entry",
                     (int(s.words[a]), int(s.words[b])))


def _ready_entries(s: Snapshot) -> Iterator[Broken]:
    ready = is_ready(s.states)
    apart = ready & ((s.flags & (layout.DUPLICATE | layout.PRIVATE)) != 0)
    yield from _at(s, 5, ready & (s.entries_of > 1), "READY with more than one index entry")
    yield from _at(s, 5, apart & (s.entries_of > 0), "a duplicate or private block with an entry")
    yield from _at(s, 5, apart & (s.states != layout.READY_LAST),
                   "a duplicate or private block that is not READY_LAST")


def _half_way(s: Snapshot) -> Iterator[Broken]:
    yield from _at(s, 6, (s.states == layout.EVICTING) & ~s.lives(s.holders),
                   "EVICTING, and nobody alive to finish it")


def _holders(s: Snapshot) -> Iterator[Broken]:
    dead = s.holders & ~np.uint64(s.live)
    yield from _at(s, 7, dead != 0, "held by a dead process")


def _sum(s: Snapshot) -> Iterator[Broken]:
    known = int(np.count_nonzero(np.isin(s.states, list(layout.STATES))))
    if known != s.blocks:
        yield Broken(8, layout.NONE, f"{known} blocks are in a state of the sum, of {s.blocks}",
                     (known, s.blocks))


def _keys(s: Snapshot) -> Iterator[Broken]:
    yield from _at(s, 9, is_ready(s.states) & s.keyless, "READY without a key")
    yield from _at(s, 9, (s.states == layout.FREE) & ~s.keyless, "FREE with a key", s.lo)


def _free_map(s: Snapshot) -> Iterator[Broken]:
    free = s.states == layout.FREE
    # The bit goes before a block is claimed, and comes after it is FREE again.
    yield from _at(s, 10, free & ~s.free & ~s.halted_near(), "FREE without its bit in the free map")
    yield from _at(s, 10, free & s.free & ~s.summary[s.region] & ~s.halted_near(),
                   "FREE in a region whose summary bit says that none is")


def _regions(s: Snapshot) -> Iterator[Broken]:
    ids = np.flatnonzero(s.holders)
    who, region = s.holders[ids], ids // layout.REGION_BLOCKS
    for slot in range(layout.SLOTS):
        mine = ((who >> np.uint64(slot)) & np.uint64(1)) != 0
        for j in np.flatnonzero(mine & ~s.regions[slot][region])[:MOST]:
            i = int(ids[j])
            yield Broken(11, i, f"held by slot {slot}, which has no bit for the region",
                         (int(s.words[i]), slot))


def _tentative(s: Snapshot) -> Iterator[Broken]:
    i = s.tentative_id
    fine = (s.states[i] == layout.FILLING) & s.lives(s.holders[i])
    for j in np.flatnonzero(~fine)[:MOST]:
        yield Broken(12, int(i[j]), "a tentative entry without a living filler",
                     (int(s.tentative[j]), int(s.words[i[j]])))


def _duplicates(s: Snapshot) -> Iterator[Broken]:
    twin = is_ready(s.states) & ((s.flags & layout.DUPLICATE) != 0) & (s.primary != layout.NONE)
    outside = twin & (s.primary >= s.blocks)
    yield from _at(s, 13, outside, "a duplicate whose primary is no block", s.primary)
    ids = np.flatnonzero(twin & ~outside)
    p = s.primary[ids].astype(np.int64)
    # The duplicate is acquired first, and the two are given back in any order.
    who = s.holders[ids] & ~np.uint64(s.halted)
    between = (who == 0) & (s.holders[ids] != 0)
    fine = between | (is_ready(s.states[p]) & ((who & ~s.holders[p]) == 0)
                      & (s.lo[ids] == s.lo[p]) & (s.hi[ids] == s.hi[p]))
    for j in np.flatnonzero(~fine)[:MOST]:
        i = int(ids[j])
        yield Broken(13, i, f"its holders do not hold its primary, block {int(p[j])}",
                     (int(s.words[i]), int(s.words[p[j]])))


def _hints(s: Snapshot) -> Iterator[Broken]:
    lives = (s.states != layout.FREE) & (s.states != layout.EVICTING)
    yield from _at(s, 14, lives & ~s.tenants_seen[s.tenant % layout.TENANTS],
                   "its tenant is none that has blocks", s.tenant)
    yield from _at(s, 14, lives & (s.tenant >= layout.TENANTS), "its tenant is no tenant", s.tenant)
    yield from _at(s, 15, lives & (s.priority % layout.FOR_A_WHILE > layout.PINNED),
                   "a priority above 100", s.priority)
    yield from _at(s, 15, lives & ((s.flags & layout.MORTAL) != 0) & (s.expires == 0),
                   "it is to expire, and nothing says when")
    yield from _at(s, 15, lives & (s.priority >= layout.FOR_A_WHILE) & (s.calms == 0),
                   "its priority is to end, and nothing says when")


def _queues(s: Snapshot) -> Iterator[Broken]:
    for name, lane in zip(queues.LANES, s.lanes, strict=True):
        if not lane.sound:
            yield Broken(16, layout.NONE, f"the words of lane {name!r} do not fit each other",
                         (lane.done, lane.head, lane.tail))


_TESTS: list[Callable[[Snapshot], Iterator[Broken]]] = [
    _states, _generations, _entries, _rivals, _ready_entries, _half_way, _holders, _sum, _keys,
    _free_map, _regions, _tentative, _duplicates, _hints, _queues]
