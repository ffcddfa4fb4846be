# SPDX-License-Identifier: Apache-2.0
"""Which blocks of a request are stored in this step, and the fills that they go to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvshm

from .metadata import Piece
from .requests import RequestState


HERE = kvshm.Presence.G2 | kvshm.Presence.FILLING
AT_ONCE = 64  # blocks of an allocation: all or none, and a small arena has few


@dataclass
class Save:
    """Blocks first .. first + len(fill) of one group of a request, announced, being written."""

    state: RequestState
    group: int  # its place among the state's groups
    first: int
    fill: kvshm.Fill
    rows: Any  # uint32, the engine's blocks that are read
    blocks: Any  # the same as indices of the request's blocks


class Planner:
    """Finds what is missing and makes room for it. Threads: the scheduler's only."""

    def __init__(self, config: kvshm.Config, parts: int) -> None:
        """parts: ranks that write a slice each."""
        self._config, self._parts = config, parts
        self._refused = 0  # blocks for which there was no space

    def take_refused(self) -> int:
        refused, self._refused = self._refused, 0
        return refused

    def limit(self, state: RequestState, group: int, tokens: int) -> int:
        """Blocks of a group that may be stored when `tokens` tokens have been computed: not more
        than have a hash, since the tokens behind are not certain yet."""
        request = state.request
        tokens = min(tokens, request.num_tokens)
        if not self._config.save_decode:
            tokens = min(tokens, request.num_prompt_tokens)
        keys = state.keys[group]
        return min(tokens // state.block_tokens(group), len(keys))

    def plan(self, arena: kvshm.Arena, state: RequestState, tokens: int,
             tables: Any) -> Iterator[Save]:
        """Saves for all groups. `tables()` gives the request's block ids by group. Raises NoSpace
        when there is none; what was yielded before that stands."""
        ids = None
        for group in range(len(state.keys)):
            first, last = state.saved[group], self.limit(state, group, tokens)
            if first >= last:
                continue
            ids = tables() if ids is None else ids
            if ids is None:
                return
            rows = np.asarray(ids[state.group_index(group)][first:last], np.uint32)
            last = first + len(rows)
            yield from self._missing(arena, state, group, first, rows)
            state.saved[group] = last

    def _missing(self, arena: kvshm.Arena, state: RequestState, group: int, first: int,
                 rows: Any) -> Iterator[Save]:
        keys = state.keys[group]
        # What is on disk alone was computed all the same: stored, it need not be loaded again.
        there = arena.presence(keys[first:first + len(rows)]) & HERE
        # Row 0 is vLLM's null block: the block has left the window.
        wanted = np.flatnonzero((there == 0) & (rows != 0))
        for some in portions(arena, wanted):
            begin, end = first + int(some[0]), first + int(some[-1]) + 1
            fill = self._allocate(arena, state, group, begin, end)
            state.saved[group] = begin
            yield Save(state, group, begin, fill, rows[some], np.arange(begin, end))

    def _allocate(self, arena: kvshm.Arena, state: RequestState, group: int, begin: int,
                  end: int) -> kvshm.Fill:
        keys = state.keys[group]
        above = block_above(arena, keys, state.tails[group], begin)
        try:
            fill = arena.allocate(end - begin, keys=keys[begin:end], after=above,
                                  parts=self._parts, priority=self._config.priority)
        except kvshm.NoSpace:
            self._refused += end - begin
            raise
        state.tails[group] = (end - 1, fill.handles[-1])
        return fill


def portions(arena: kvshm.Arena, blocks: Any) -> Iterator[Any]:
    """Places of blocks in a chain, cut into neighbours that one allocation may ask for."""
    at_once = min(AT_ONCE, arena.blocks)
    for run in np.split(blocks, np.flatnonzero(np.diff(blocks) != 1) + 1):
        for first in range(0, len(run), at_once):
            yield run[first:first + at_once]


def block_above(arena: kvshm.Arena, keys: Any, tail: tuple[int, kvshm.Handle] | None,
                begin: int) -> kvshm.Handle | None:
    """The block before `begin`, as a hint: evictions go leaf by leaf. None if it is not there.

    keys: of the chain, to be cut. tail: the last block of it that was allocated, and its place.
    """
    if begin == 0:
        return None
    if tail is not None and tail[0] == begin - 1:
        return tail[1]
    with arena.match(keys[begin - 1:begin], touch=False) as lease:
        return lease.handle(0) if lease else None


def piece_of(save: Save) -> Piece | None:
    """What the workers are told of it; None if others fill all of these keys by now. The save is
    then of the announced blocks only."""
    mine = save.fill.status == kvshm.Status.ANNOUNCED
    if not mine.any():
        return None
    save.rows, save.blocks = save.rows[mine], save.blocks[mine]
    return Piece(save.state.group_index(save.group), save.fill.handle_array[mine], save.rows)
