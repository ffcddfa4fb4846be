# SPDX-License-Identifier: Apache-2.0
"""KV on a shared arena, in place: the blocks that attention reads and writes lie in the arena.

The full blocks of a prompt that nobody has are allocated and announced at once, so that a worker
which is asked the same meanwhile waits for them. Each is registered as soon as it is full. Where
the arena has no space the request goes on in private memory: a miss, nothing more.
"""

from __future__ import annotations

import warnings
from collections import deque

import kvshm
import numpy as np
import torch

from .config import FLOAT_BYTES
from .identity import identity_of
from .kv import Counts, KeyBytes, KVCache, Registered
from .settings import COPY, Settings

RACES = 3  # after so many lost ones a request computes what others compute too

# torch knows no read-only tensor. The engine never writes to a block that it did not allocate.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


def open_cache(settings: Settings, chunk_ms: float) -> KVCache:
    arena = kvshm.Arena.attach(
        settings.arena,
        identity=identity_of(settings),
        block_bytes=settings.model.block_bytes(settings.block_tokens),
        dir=settings.directory,
        label=settings.label,
    )
    shared = Shared(arena, settings, chunk_ms)
    if settings.kv == COPY:
        from .kv_copy import CopyCache

        return CopyCache(shared)
    return InPlaceCache(shared)


class Shared:
    """The arena and what both ways of using it need."""

    def __init__(self, arena: kvshm.Arena, settings: Settings, chunk_ms: float) -> None:
        """chunk_ms: what computing one block takes here. It bounds the wait for others."""
        self.arena = arena
        self.identity = identity_of(settings)
        self.shape = settings.model.block_shape(settings.block_tokens)
        self.block_tokens = settings.block_tokens
        self.block_bytes = settings.model.block_bytes(settings.block_tokens)
        self.counts = Counts()
        self._wait, self._chunk_ms = settings.wait_limit, chunk_ms

    def tensor(self, view: kvshm.View) -> torch.Tensor:
        """The block as a tensor; it keeps the view, and so the block, held."""
        count = self.block_bytes // FLOAT_BYTES
        return torch.frombuffer(view, dtype=torch.float32, count=count).view(self.shape)

    def plan(self, keys: list[KeyBytes], tokens: int, reuse: bool) -> kvshm.MatchPlan:
        """What to reuse, after waiting for what others are computing; at least one token is left
        to compute."""
        plan = kvshm.plan(
            self.arena, keys if reuse else keys[:0], tokens, wait=self._wait,
            compute_ms=self._chunk_ms,
        )
        self.counts.waited += plan.waits
        return plan

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
        self.blocks: list[torch.Tensor] = []
        self.reused: list[KeyBytes] = []
        self._shared, self._registered = shared, registered
        self._ahead: deque[kvshm.Fill] = deque()  # announced, not yet begun
        self._writing: kvshm.Fill | None = None  # None: the last block is private, or complete
        self._leases: list[kvshm.Lease] = []
        self._keys = Keys(shared.identity, tokens)
        self._prompt_blocks = len(self._keys.all)
        self._last: kvshm.Handle | None = None  # of the last block; None: private, or no block
        try:
            for _ in range(RACES):
                if self._begin(len(tokens), reuse):
                    break
        except BaseException:
            self.close()
            raise

    def _begin(self, tokens: int, reuse: bool) -> bool:
        """Find, and announce the rest. False: somebody announced the same in between."""
        self.close()
        found = self._shared.plan(self._keys.all, tokens, reuse).lease
        self._leases.append(found)
        self.blocks = [self._shared.tensor(found.view(i)) for i in range(len(found))]
        self.reused = self._keys.all[: len(found)]
        after = self._last = found.handle(len(found) - 1) if found else None
        # One fill a block, as each is registered as soon as it is full.
        for key in self._keys.all[len(found) :]:
            try:
                fill = self._shared.arena.allocate(1, keys=[key], after=after)
            except kvshm.NoSpace:
                break
            after = fill.handles[0]
            self._ahead.append(fill)
        return not (self._ahead and self._ahead[0].status[0] == kvshm.Status.PENDING)

    def extend(self) -> None:
        shared = self._shared
        self._writing = None
        if self._ahead:
            self._writing = self._ahead.popleft()
        elif len(self.blocks) >= self._prompt_blocks:
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
        self._keys.grow(tokens)
        key, parent = self._keys.pair(len(self.blocks) - 1)
        if self._writing is None:
            return
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
