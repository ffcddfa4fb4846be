# SPDX-License-Identifier: Apache-2.0
"""KV in memory of the worker's own, as engines with device memory have it: a block is copied once
into the arena when it is complete, and once out of it when another worker needs it."""

from __future__ import annotations

import kvshm
import torch

from .kv import KeyBytes, LocalStore, Registered, reusable_blocks
from .kv_arena import Keys, Shared

OWN_BLOCKS = 4096  # of the worker's own cache; more than the demo ever has


class CopySequence:
    def __init__(
        self, cache: CopyCache, tokens: list[int], reuse: bool, registered: Registered
    ) -> None:
        self.blocks: list[torch.Tensor] = []
        self.reused: list[KeyBytes] = []
        self._cache, self._registered = cache, registered
        self._keys = Keys(cache.shared.identity, tokens)
        usable = reusable_blocks(tokens, cache.shared.block_tokens) if reuse else 0
        for key in self._keys.all[:usable]:
            block = cache.own.get(key)
            if block is None:
                break
            self.blocks.append(block)
        self._fetch(len(tokens), len(self.blocks), usable)
        self.reused = self._keys.all[: len(self.blocks)]

    def _fetch(self, tokens: int, own: int, usable: int) -> None:
        """What others have beyond our own run, copied once."""
        shared = self._cache.shared
        behind = tokens - own * shared.block_tokens
        with shared.plan(self._keys.all[own:usable], behind, True) as plan:
            for i in range(plan.reused_blocks):
                block = torch.empty(shared.shape)
                plan.lease.copy_out(i, block.numpy().reshape(-1))
                shared.counts.copied_out += shared.block_bytes
                self.blocks.append(block)
                self._cache.own.put(self._keys.all[own + i], block)

    def extend(self) -> None:
        self.blocks.append(torch.empty(self._cache.shared.shape))

    def complete(self, tokens: list[int], made: str) -> None:
        self._keys.grow(tokens)
        key, parent = self._keys.pair(len(self.blocks) - 1)
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
