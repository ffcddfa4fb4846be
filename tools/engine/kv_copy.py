# SPDX-License-Identifier: Apache-2.0
"""KV in memory of the worker's own, as engines with device memory have it: a block is copied once
into the arena when it is complete, and once out of it when another worker needs it."""

from __future__ import annotations

import kvshm
import torch

from .kv import KeyBytes, LocalStore, Registered, reusable_blocks
from .kv_arena import Shared

OWN_BLOCKS = 4096  # of the worker's own cache; more than the demo ever has


class CopySequence:
    def __init__(
        self, cache: CopyCache, tokens: list[int], reuse: bool, registered: Registered
    ) -> None:
        self.blocks: list[torch.Tensor] = []
        self.reused: list[KeyBytes] = []
        self._cache, self._registered = cache, registered
        shared = cache.shared
        keys = shared.keys(tokens)
        self._keys = [bytes(key) for key in keys]
        usable = reusable_blocks(tokens, shared.block_tokens) if reuse else 0
        for key in self._keys[:usable]:
            block = cache.own.get(key)
            if block is None:
                break
            self.blocks.append(block)
        own = len(self.blocks)
        with shared.match(keys[own:usable]) as found:
            for i in range(len(found)):
                block = torch.empty(shared.shape)
                found.copy_out(i, block.numpy().reshape(-1))
                shared.counts.copied_out += shared.block_bytes
                self.blocks.append(block)
                cache.own.put(self._keys[own + i], block)
        self.reused = self._keys[: len(self.blocks)]

    def extend(self) -> None:
        self.blocks.append(torch.empty(self._cache.shared.shape))

    def complete(self, tokens: list[int], made: str) -> None:
        shared = self._cache.shared
        size = shared.block_tokens
        index = len(self.blocks) - 1
        parent = self._keys[index - 1] if index else b""
        if index == len(self._keys):
            block = tokens[index * size : (index + 1) * size]
            self._keys.append(bytes(shared.keys(block, parent or None)[0]))
        key = self._keys[index]
        self._cache.own.put(key, self.blocks[-1])
        if self._offer(key):
            self._registered(key, parent, made)

    def _offer(self, key: KeyBytes) -> bool:
        """Into the arena, unless it is there or there is no space."""
        shared = self._cache.shared
        try:
            fill = shared.arena.allocate(1, keys=[key])
        except kvshm.NoSpace:
            shared.counts.private += 1
            return False
        with fill:
            if fill.status[0] in (kvshm.Status.EXISTS, kvshm.Status.PENDING):
                return False
            fill.copy_in(0, self.blocks[-1].numpy().reshape(-1))
            shared.counts.copied_in += shared.block_bytes
            fill.register().release()
        shared.counts.registered += 1
        return True

    def close(self) -> None:
        self.blocks = []


class CopyCache:
    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.counts = shared.counts
        self.own = LocalStore(OWN_BLOCKS)

    def open(self, tokens: list[int], reuse: bool, registered: Registered) -> CopySequence:
        return CopySequence(self, tokens, reuse, registered)

    def close(self) -> None:
        self.shared.close()
