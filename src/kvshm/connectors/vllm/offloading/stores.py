# SPDX-License-Identifier: Apache-2.0
"""Room in the arena for what no process has, and what became of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import (
    Locality,
    Medium,
    OffloadingEvent,
    OffloadKey,
    PrepareStoreOutput,
    get_offload_group_idx,
)

import kvshm
from kvshm.convert import HANDLE_DTYPE

from ..metadata import ArenaRef, Handles
from ..saves import HERE, block_above, portions
from .records import ArenaBlocks
from .requests import Asked, Chain


@dataclass
class _Store:
    """One job: its fills, which this process stays a member of until every worker is done."""

    names: list[OffloadKey]
    keys: list[Any]  # the arena's, of each fill
    fills: list[kvshm.Fill]

    def leave(self) -> None:
        for fill in self.fills:
            fill.abort()  # what is READY stays
        self.fills = []


class Stores:
    """Threads: the scheduler's only."""

    def __init__(self, config: kvshm.Config, writers: int, events: bool) -> None:
        """writers: ranks that write a slice of each block."""
        self._config, self._writers = config, writers
        self._stores: dict[OffloadKey, _Store] = {}
        # What this process stored, by the arena's key, for who is told of evictions.
        self._names: dict[bytes, OffloadKey] | None = {} if events else None
        self._events: list[OffloadingEvent] = []

    def __len__(self) -> int:
        return len(self._stores)

    def prepare(self, arena: kvshm.Arena, ref: ArenaRef | None, asked: Asked,
                keys: Collection[OffloadKey]) -> PrepareStoreOutput | None:
        """None: there is no space at all; vLLM tries again in the next step."""
        store = _Store([], [], [])
        handles: list[Handles] = [np.empty(0, HANDLE_DTYPE)]
        evicted: list[OffloadKey] = []
        try:
            for chain, run, fill in self._fills(arena, asked, keys):
                evicted += self._evicted(fill.evicted)
                mine = fill.status == kvshm.Status.ANNOUNCED  # others fill the rest
                if mine.any():
                    store.fills.append(fill)
                    store.names += [chain.names[at] for at in run[mine]]
                    store.keys.append(chain.keys[run[mine]])
                    handles.append(fill.handle_array[mine])
                else:
                    fill.abort()
        except kvshm.NoSpace:
            if not store.names:
                return None
            # Of what found room vLLM is told; the rest is not stored.
        self._stores.update((name, store) for name in store.names)
        return PrepareStoreOutput(store.names, ArenaBlocks(ref, np.concatenate(handles)), evicted)

    def _fills(self, arena: kvshm.Arena, asked: Asked,
               keys: Collection[OffloadKey]) -> Iterator[tuple[Chain, Any, kvshm.Fill]]:
        """Fills for what no process has, in the order of `keys`, with the places of their blocks
        in the chain of a group."""
        for _, some in groupby(keys, get_offload_group_idx):
            places = [place for place in map(asked.place, some) if place is not None]
            if not places:
                continue
            chain = places[0][1]
            at = np.array([place[2] for place in places])
            wanted = at[arena.presence(chain.keys[at]) & HERE == 0]
            for run in portions(arena, wanted):
                fill = arena.allocate(
                    len(run), keys=chain.keys[run],
                    after=block_above(arena, chain.keys, chain.tail, int(run[0])),
                    parts=self._writers, priority=self._config.priority)
                chain.tail = (int(run[-1]), fill.handles[-1])
                yield chain, run, fill

    def complete(self, arena: kvshm.Arena | None, keys: Collection[OffloadKey]) -> None:
        """The last worker to write has published; a worker that could not has left a hole, and
        nothing is there."""
        done = {id(store): store for store in (self._stores.pop(key, None) for key in keys)
                if store is not None}
        for store in done.values():
            store.leave()
            if self._names is not None and arena is not None:
                self._stored(arena, store)

    def leave(self) -> None:
        """All that are under way. The workers' parts of them end by themselves."""
        for store in self._stores.values():
            store.leave()
        self._stores = {}

    # ---- events --------------------------------------------------------------------------------

    def _stored(self, arena: kvshm.Arena, store: _Store) -> None:
        assert self._names is not None
        keys = np.concatenate(store.keys)
        there = arena.presence(keys) & kvshm.Presence.G2 != 0
        found = [name for name, yes in zip(store.names, there) if yes]
        if found:
            self._names.update(zip((key.tobytes() for key in keys[there]), found))
            while len(self._names) > arena.blocks:  # those that other processes evicted
                del self._names[next(iter(self._names))]
            self._events.append(OffloadingEvent(found, Medium.CPU, False, Locality.LOCAL))

    def _evicted(self, keys: Any) -> list[OffloadKey]:
        """Of the arena's keys those that this process stored."""
        if self._names is None:
            return []
        found = [self._names.pop(key.tobytes(), None) for key in keys]
        gone = [name for name in found if name is not None]
        if gone:
            self._events.append(OffloadingEvent(gone, Medium.CPU, True, Locality.LOCAL))
        return gone

    def take_events(self) -> Iterable[OffloadingEvent]:
        events, self._events = self._events, []
        return events
