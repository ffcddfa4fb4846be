# SPDX-License-Identifier: Apache-2.0
"""KV in memory of the worker's own, as engines with device memory have it: a block is copied once
into the arena when it is complete, and once out of it when another worker needs it."""

from __future__ import annotations

import time
from typing import Any

import kvshm
import torch
from kvshm.layerwise import LayerwiseLoad

from .kv import KeyBytes, LocalStore, Registered, reusable_blocks
from .kv_arena import Keys, Shared


class CopySequence:
    def __init__(
        self, cache: CopyCache, tokens: list[int], reuse: bool, registered: Registered
    ) -> None:
        self.blocks: list[Any] = []
        self.arriving = False
        self._cache, self._registered = cache, registered
        shared = cache.shared
        self._keys = Keys(shared.identity, tokens)
        usable = reusable_blocks(tokens, shared.block_tokens) if reuse else 0
        for key in self._keys.all[:usable]:
            block = cache.own.get(key)
            if block is None:
                break
            self.blocks.append(block)
        self._until = time.monotonic() + shared.tier_wait
        self._own = own = len(self.blocks)
        behind = len(tokens) - own * shared.block_tokens
        self._load: LayerwiseLoad | None = shared.find(self._keys.all[own:usable], behind)
        # What others have beyond our own run, copied once.
        self.blocks += [torch.empty(shared.shape) for _ in range(self._load.blocks)]
        self.reused = self._keys.all[:len(self.blocks)]
        self.arriving = self._load.loads > 0
        self._copied = 0  # parts, of the blocks that arrive
        if not self.arriving:
            for group in range(shared.groups):
                self._copy_out(group)

    def _copy_out(self, group: int) -> None:
        """A part of the blocks that others have; with the last one they are ours, too."""
        shared, load = self._cache.shared, self._load
        assert load is not None
        layers = slice(group * shared.per_group, (group + 1) * shared.per_group)
        for i in range(load.blocks):
            load.copy_out(group, i, self.blocks[self._own + i][layers].numpy().reshape(-1))
            shared.counts.copied_out += shared.part_bytes
        if group == shared.groups - 1:
            for i in range(self._own, self._own + load.blocks):
                self._cache.own.put(self._keys.all[i], self.blocks[i])
            load.release()

    def arrived(self, layer: int) -> bool:
        shared, load = self._cache.shared, self._load
        group, within = divmod(layer, shared.per_group)
        if not self.arriving or within or load is None:
            return True
        found = self._own + load.wait(group, max(0.0, self._until - time.monotonic()))
        if found < len(self.reused):
            shared.counts.missed += len(self.reused) - found
            self.reused, self.blocks = self.reused[:found], self.blocks[:found]
            return False
        if group >= self._copied:
            self._copy_out(group)
            self._copied = group + 1
        if group == shared.groups - 1:
            self.arriving = False
            shared.counts.loaded += load.blocks
        return True

    def extend(self) -> None:
        self.blocks.append(torch.empty(self._cache.shared.shape))

    def complete(self, tokens: list[int], made: str) -> None:
        self._keys.grow(tokens)
        index = len(tokens) // self._cache.shared.block_tokens - 1
        key, parent = self._keys.pair(index)
        self._cache.own.put(key, self.blocks[index])
        if self._offer(key, self.blocks[index]):
            self._registered(key, parent, made)

    def _offer(self, key: KeyBytes, block: torch.Tensor) -> bool:
        """Into the arena what of it is not there, if there is space. True: all of it is new."""
        shared = self._cache.shared
        new = 0
        for part, own in zip(block.chunk(shared.groups), shared.keys_of(key), strict=True):
            try:
                fill = shared.arena.allocate(1, keys=own)
            except kvshm.NoSpace:
                shared.counts.private += 1
                return False
            with fill:
                if fill.status[0] in (kvshm.Status.EXISTS, kvshm.Status.PENDING):
                    continue
                fill.copy_in(0, part.numpy().reshape(-1))
                shared.counts.copied_in += shared.part_bytes
                fill.register().release()
                new += 1
        shared.counts.registered += new == shared.groups
        return new == shared.groups

    def close(self) -> None:
        self.blocks = []
        if self._load is not None:
            self._load.release()
            self._load = None


class CopyCache:
    def __init__(self, shared: Shared, own_blocks: int) -> None:
        self.shared = shared
        self.counts = shared.counts
        self.own = LocalStore(own_blocks)
        self.enqueued, self.begun, self.idle = shared.enqueued, shared.begun, shared.idle

    def open(self, tokens: list[int], reuse: bool, registered: Registered) -> CopySequence:
        return CopySequence(self, tokens, reuse, registered)

    def close(self) -> None:
        self.shared.close()
