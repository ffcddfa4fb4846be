# SPDX-License-Identifier: Apache-2.0
"""KV on a shared arena, in place: the blocks that attention reads and writes lie in the arena.

The full blocks of a prompt that nobody has are allocated and announced at once, so that a worker
which is asked the same meanwhile waits for them. Each is registered as soon as it is full. Where
the arena has no space the request goes on in private memory: a miss, nothing more.

A block is one arena block a layer group. What lies in the tier alone is on its way when a sequence
is opened, group by group.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Sequence
from typing import Any

import kvshm
import numpy as np
import torch
from kvshm.ahead import Ahead
from kvshm.layerwise import LayerKeys, LayerwiseLoad

from .config import FLOAT_BYTES
from .identity import identity_of
from .kv import Counts, KeyBytes, KVCache, PartedBlock, Registered, reusable_blocks
from .settings import COPY, ENQUEUE, Settings

TIER_LIMIT = 10.0  # seconds, for reading a tier back before the first request
RACES = 3  # after so many lost ones a request computes what others compute too

# torch knows no read-only tensor. The engine never writes to a block that it did not allocate.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


def open_cache(settings: Settings, chunk_ms: float) -> KVCache:
    arena = kvshm.Arena.attach(
        settings.arena,
        identity=identity_of(settings),
        block_bytes=settings.part_bytes,
        dir=settings.directory,
        label=settings.label,
        tier=settings.tier or None,
        tier_size=settings.tier_size if settings.tier else 0,
        tier_options={"write": settings.tier_write} if settings.tier else None,
    )
    # Until the tier's records are read, look-ups would find memory only.
    began = time.monotonic()
    starting = kvshm.TierState.NONE, kvshm.TierState.REBUILDING
    while arena.tier is not None and arena.tier.state in starting:
        if time.monotonic() - began > TIER_LIMIT:
            break
        time.sleep(0.01)
    shared = Shared(arena, settings, chunk_ms)
    if settings.kv == COPY:
        from .kv_copy import CopyCache

        return CopyCache(shared, settings.own_blocks)
    return InPlaceCache(shared)


class Shared:
    """The arena and what both ways of using it need."""

    def __init__(self, arena: kvshm.Arena, settings: Settings, chunk_ms: float) -> None:
        """chunk_ms: what computing one block takes here. It bounds the wait for others."""
        self.arena = arena
        self.identity = identity_of(settings)
        self.shape = settings.model.block_shape(settings.block_tokens)
        self.groups = settings.layer_groups
        self.per_group = settings.model.layers // self.groups  # layers
        self.part_bytes = settings.part_bytes
        self.block_tokens = settings.block_tokens
        self.counts = Counts()
        self.tier_wait = settings.tier_wait
        self._layer_keys = LayerKeys(self.identity, self.groups)
        self._wait, self._chunk_ms = settings.wait_limit, chunk_ms
        self._ahead = None
        if settings.tier and settings.prefetch == ENQUEUE:
            self._ahead = Ahead(arena, settings.prefetch_ahead)

    def tensor(self, view: kvshm.View) -> torch.Tensor:
        """A part of a block as a tensor; it keeps the view, and so the arena's block, held."""
        count = self.part_bytes // FLOAT_BYTES
        flat = torch.frombuffer(view, dtype=torch.float32, count=count)
        return flat.view(self.per_group, *self.shape[1:])

    def block(self, parts: list[torch.Tensor | None]) -> Any:
        return parts[0] if self.groups == 1 else PartedBlock(parts, self.per_group)

    def keys_of(self, key: KeyBytes) -> list[np.ndarray]:
        """Of a block's parts, for allocate() and register()."""
        return self._layer_keys.every([key])

    def find(self, keys: Sequence[KeyBytes], tokens: int) -> LayerwiseLoad:
        """What of these first blocks of `tokens` tokens is in memory or in the tier, after waiting
        for what others are computing."""
        every = self._layer_keys.every(keys)
        load = LayerwiseLoad(self.arena, every)
        while load.blocks < len(keys):
            # The last part of a block is the last to be registered.
            behind = tokens - load.blocks * self.block_tokens
            with kvshm.plan(self.arena, every[-1][load.blocks:], behind, wait=self._wait,
                            compute_ms=self._chunk_ms) as plan:
                self.counts.waited += plan.waits
                if not plan.reused_blocks:
                    break
                more = LayerwiseLoad(self.arena, every)
            load, less = (more, load) if more.blocks > load.blocks else (load, more)
            less.release()
            if less is more:
                break
        return load

    def enqueued(self, name: int, tokens: list[int]) -> None:
        if self._ahead is not None:
            usable = reusable_blocks(tokens, self.block_tokens)
            keys = self.identity.keys(np.asarray(tokens, np.uint32))[:usable]
            with contextlib.suppress(kvshm.Error):  # it finds out itself when it is opened
                self.counts.prefetched += self._ahead.arrived(name, self._layer_keys.every(keys))

    def begun(self, name: int) -> None:
        if self._ahead is not None:
            with contextlib.suppress(kvshm.Error):
                self.counts.prefetched += self._ahead.begun(name)

    def idle(self) -> None:
        """What was gathered for the disk goes down while nobody waits."""
        with contextlib.suppress(kvshm.Error):
            self.arena.tier_flush()

    def close(self) -> None:
        self.arena.close()


class Keys:
    """Keys of a sequence's full blocks, as it grows."""

    def __init__(self, identity: kvshm.Identity, tokens: list[int]) -> None:
        self._chain = kvshm.KeyChain(identity)
        self._tokens = 0
        self.all: list[KeyBytes] = []
        self.grow(tokens)

    def grow(self, tokens: list[int]) -> None:
        """`tokens` is the whole sequence; those that are known already are not hashed again."""
        new = self._chain.extend(np.asarray(tokens[self._tokens :], np.uint32))
        self.all += [bytes(key) for key in new]
        self._tokens = max(self._tokens, len(tokens))

    def pair(self, index: int) -> tuple[KeyBytes, KeyBytes]:
        """Key of a block and of its parent."""
        return self.all[index], self.all[index - 1] if index else b""


class InPlaceSequence:
    def __init__(
        self, shared: Shared, tokens: list[int], reuse: bool, registered: Registered
    ) -> None:
        self.blocks: list[Any] = []
        self.reused: list[KeyBytes] = []
        self.arriving = False
        self._shared, self._registered = shared, registered
        # By block, one a part: announced, or being written. A block without them is private.
        self._fills: dict[int, list[kvshm.Fill]] = {}
        self._leases: list[kvshm.Lease] = []
        self._load: LayerwiseLoad | None = None
        self._keys = Keys(shared.identity, tokens)
        self._prompt_blocks = len(self._keys.all)
        # Of the last block's parts; none: it is private, or there is no block.
        self._last: list[kvshm.Handle] = []
        self._until = time.monotonic() + shared.tier_wait
        usable = reusable_blocks(tokens, shared.block_tokens) if reuse else 0
        try:
            for _ in range(RACES):
                if self._begin(len(tokens), usable):
                    break
        except BaseException:
            self.close()
            raise

    def _begin(self, tokens: int, usable: int) -> bool:
        """Find, and announce the rest. False: somebody announced the same in between."""
        self.close()
        load = self._load = self._shared.find(self._keys.all[:usable], tokens)
        self.reused = self._keys.all[:load.blocks]
        groups = self._shared.groups
        self.blocks = [self._shared.block([None] * groups) for _ in self.reused]
        self.arriving = load.loads > 0
        if not self.arriving and self.reused:
            for group in range(groups):
                self._take(group)
        if self.reused and not self.arriving:
            self._last = [load.leases[group].handle(load.blocks - 1) for group in range(groups)]
        first = self._announce(load.blocks, self._prompt_blocks)
        return first is None or all(fill.status[0] != kvshm.Status.PENDING for fill in first)

    def _announce(self, begin: int, end: int) -> list[kvshm.Fill] | None:
        """One fill a part, as each block is registered as soon as it is full. The first block's, if
        there is one and room for it."""
        after = list(self._last)
        for index in range(begin, end):
            fills = self._allocate(self._shared.keys_of(self._keys.all[index]), after)
            if fills is None:
                break
            self._fills[index] = fills
            after = [fill.handles[0] for fill in fills]
        return self._fills.get(begin)

    def _allocate(self, keys: list[Any], after: list[kvshm.Handle]) -> list[kvshm.Fill] | None:
        """Room for the parts of one block, all or none."""
        fills: list[kvshm.Fill] = []
        try:
            for group in range(self._shared.groups):
                fills.append(self._shared.arena.allocate(
                    1, keys=keys[group] if keys else None, after=after[group] if after else None))
        except kvshm.NoSpace:
            for fill in fills:
                fill.abort()
            return None
        return fills

    def arrived(self, layer: int) -> bool:
        shared, load = self._shared, self._load
        group, within = divmod(layer, shared.per_group)
        if not self.arriving or within or load is None:
            return True
        found = load.wait(group, max(0.0, self._until - time.monotonic()))
        if found < len(self.reused):
            self._shorten(found)
            return False
        self._take(group)
        if group == shared.groups - 1:
            self.arriving = False
            shared.counts.loaded += found
        return True

    def _take(self, group: int) -> None:
        """Put a part of the found blocks where attention reads it."""
        load = self._load
        assert load is not None
        for i in range(len(self.reused)):
            part = self._shared.tensor(load.view(group, i))
            if self._shared.groups == 1:
                self.blocks[i] = part
            else:
                self.blocks[i].parts[group] = part

    def _shorten(self, found: int) -> None:
        """What was to come behind it has to be computed."""
        before = len(self.reused)
        self._shared.counts.missed += before - found
        self.reused, self.blocks = self.reused[:found], self.blocks[:found]
        self._last = []
        self._announce(found, before)

    def extend(self) -> None:
        shared, index = self._shared, len(self.blocks)
        fills = self._fills.get(index)
        if fills is None and index >= self._prompt_blocks:
            # Not full by the prompt alone; its key shows when it is full.
            fills = self._allocate([], self._last)
            if fills is not None:
                self._fills[index] = fills
        if fills is None:
            shared.counts.private += 1
            self.blocks.append(torch.empty(shared.shape))
            self._last = []
        else:
            self.blocks.append(shared.block([shared.tensor(fill.view(0)) for fill in fills]))
            self._last = [fill.handles[0] for fill in fills]

    def complete(self, tokens: list[int], made: str) -> None:
        self._keys.grow(tokens)
        index = len(tokens) // self._shared.block_tokens - 1
        key, parent = self._keys.pair(index)
        fills = self._fills.pop(index, None)
        if fills is None:
            return
        for fill, own in zip(fills, self._shared.keys_of(key), strict=True):
            self._leases.append(fill.register(keys=own))
        self._shared.counts.registered += 1
        self._registered(key, parent, made)

    def close(self) -> None:
        # The tensors first: each holds its block.
        self.blocks = []
        for fills in self._fills.values():
            for fill in fills:
                fill.abort()
        self._fills.clear()
        for held in (*self._leases, self._load):
            if held is not None:
                held.release()
        self._leases, self._load = [], None


class InPlaceCache:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.counts = shared.counts
        self.enqueued, self.begun, self.idle = shared.enqueued, shared.begun, shared.idle

    def open(self, tokens: list[int], reuse: bool, registered: Registered) -> InPlaceSequence:
        return InPlaceSequence(self._shared, tokens, reuse, registered)

    def close(self) -> None:
        self._shared.close()
