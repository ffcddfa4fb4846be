# SPDX-License-Identifier: Apache-2.0
"""KV on a shared arena, in place: the blocks that attention reads and writes lie in the arena.

The full blocks of a prompt that nobody has are allocated and announced at once, so that a worker
which is asked the same meanwhile waits for them. Each is registered as soon as it is full. Where
the arena has no space the request goes on in private memory: a miss, nothing more.
"""

from __future__ import annotations

import time
import warnings
from collections import deque

import kvshm
import numpy as np
import torch

from .config import ModelConfig
from .identity import identity_of
from .kv import Counts, KeyBytes, KVCache, Registered, reusable_blocks
from .settings import COPY, Settings

# torch knows no read-only tensor. The engine never writes to a block that it did not allocate.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


def open_cache(settings: Settings) -> KVCache:
    arena = kvshm.Arena.attach(
        settings.arena,
        identity=identity_of(settings),
        block_bytes=settings.model.block_bytes(settings.block_tokens),
        dir=settings.directory,
        label=settings.label,
    )
    shared = Shared(arena, settings.model, settings.block_tokens, settings.wait_limit)
    if settings.kv == COPY:
        from .kv_copy import CopyCache

        return CopyCache(shared)
    return InPlaceCache(shared)


class Shared:
    """The arena and what both ways of using it need."""

    def __init__(
        self, arena: kvshm.Arena, model: ModelConfig, block_tokens: int, wait_limit: float
    ) -> None:
        self.arena = arena
        self.shape = model.block_shape(block_tokens)
        self.block_tokens = block_tokens
        self.block_bytes = model.block_bytes(block_tokens)
        self.counts = Counts()
        self._wait_limit = wait_limit

    def keys(self, tokens: list[int], parent: KeyBytes | None = None) -> np.ndarray:
        return self.arena.identity.keys(np.asarray(tokens, np.uint32), parent=parent)

    def tensor(self, view: kvshm.View) -> torch.Tensor:
        """The block as a tensor; it keeps the view, and so the block, held."""
        count = self.block_bytes // 4
        return torch.frombuffer(view, dtype=torch.float32, count=count).view(self.shape)

    def match(self, keys: np.ndarray) -> kvshm.Lease:
        """The longest prefix that is to be had. A block that somebody is computing is awaited, as
        long as there is one more block every `wait_limit` seconds."""
        deadline = time.monotonic() + self._wait_limit
        lease = self.arena.match(keys)
        while lease.pending is not None and time.monotonic() < deadline:
            self.counts.waited += 1
            self.arena.wait(lease.pending, max(0.0, deadline - time.monotonic()))
            # The old lease holds what was found until the new one does.
            longer = self.arena.match(keys)
            if len(longer) > len(lease):
                deadline = time.monotonic() + self._wait_limit
            lease.release()
            lease = longer
        return lease

    def close(self) -> None:
        self.arena.close()


class InPlaceSequence:
    def __init__(
        self, shared: Shared, tokens: list[int], reuse: bool, registered: Registered
    ) -> None:
        self.blocks: list[torch.Tensor] = []
        self.reused: list[KeyBytes] = []
        self._shared, self._registered = shared, registered
        self._ahead: deque[kvshm.Fill] = deque()  # announced, not yet begun
        self._writing: kvshm.Fill | None = None  # None: the last block is private, or complete
        self._leases: list[kvshm.Lease] = []
        keys = shared.keys(tokens)
        self._keys = [bytes(key) for key in keys]
        usable = reusable_blocks(tokens, shared.block_tokens) if reuse else 0
        try:
            found = shared.match(keys[:usable])
            self._leases.append(found)
            for i in range(len(found)):
                self.blocks.append(shared.tensor(found.view(i)))
                self.reused.append(self._keys[i])
            self._last: kvshm.Handle | None = found.handle(len(found) - 1) if found else None
            self._announce(keys[len(found) :])
        except BaseException:
            self.close()
            raise

    def _announce(self, keys: np.ndarray) -> None:
        """Blocks for these keys, as many as there is space for."""
        after = self._last
        for i in range(len(keys)):
            try:
                fill = self._shared.arena.allocate(1, keys=keys[i : i + 1], after=after)
            except kvshm.NoSpace:
                return
            after = fill.handles[0]
            self._ahead.append(fill)

    def extend(self) -> None:
        shared = self._shared
        self._writing = None
        if self._ahead:
            self._writing = self._ahead.popleft()
        elif len(self.blocks) >= len(self._keys):
            # Not full by the prompt alone; its key shows when it is full.
            try:
                self._writing = shared.arena.allocate(1, after=self._last)
            except kvshm.NoSpace:
                pass
        if self._writing is None:
            shared.counts.private += 1
            self.blocks.append(torch.empty(shared.shape))
            self._last = None
        else:
            self.blocks.append(shared.tensor(self._writing.view(0)))
            self._last = self._writing.handles[0]

    def complete(self, tokens: list[int], made: str) -> None:
        size = self._shared.block_tokens
        index = len(self.blocks) - 1
        parent = self._keys[index - 1] if index else b""
        if index == len(self._keys):
            block = tokens[index * size : (index + 1) * size]
            self._keys.append(bytes(self._shared.keys(block, parent or None)[0]))
        if self._writing is None:
            return
        key = self._keys[index]
        self._leases.append(self._writing.register(keys=[key]))
        self._writing = None
        self._shared.counts.registered += 1
        self._registered(key, parent, made)

    def close(self) -> None:
        # The tensors first: each holds its block.
        self.blocks = []
        for fill in (*self._ahead, self._writing):
            if fill is not None:
                fill.abort()
        self._ahead.clear()
        self._writing = None
        for lease in self._leases:
            lease.release()
        self._leases = []


class InPlaceCache:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.counts = shared.counts

    def open(self, tokens: list[int], reuse: bool, registered: Registered) -> InPlaceSequence:
        return InPlaceSequence(self._shared, tokens, reuse, registered)

    def close(self) -> None:
        self._shared.close()
