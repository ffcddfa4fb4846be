# SPDX-License-Identifier: Apache-2.0
"""Where a request's KV blocks come from and where they go: the interface, and two private forms.

A request is one sequence of blocks, opened on its prompt: a prefix that was found, then blocks that
it writes. `OffCache` finds nothing; it is the reference for "without reuse". `LocalCache` finds
what this process computed before. The forms on a shared arena are in kv_arena.py.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from .attention import Block
from .config import ModelConfig

KeyBytes = bytes
# Called with the key of each block that a sequence adds, its parent's key, and how it was made.
Registered = Callable[[KeyBytes, KeyBytes, str], None]

PREFILL = "prefill"  # computed in one chunk; any other process would get the same bits
PIECES = "pieces"  # partly by decoding: equal up to rounding


@dataclass
class Counts:
    """Of one process since its start."""

    registered: int = 0  # blocks that others can find now
    private: int = 0  # blocks that nobody else can find, for want of space
    copied_in: int = 0  # bytes, this process to arena
    copied_out: int = 0  # bytes, arena to this process
    waited: int = 0  # times a block was awaited that somebody else was computing
    loaded: int = 0  # blocks that came from the tier for a request
    missed: int = 0  # blocks that were to come, and were computed
    prefetched: int = 0  # blocks asked for from the tier before a request's turn


class Sequence(Protocol):
    """The blocks of one request, in order; those behind the found ones are being written."""

    blocks: list[Block]
    reused: list[KeyBytes]  # keys of the blocks that were found
    arriving: bool  # some of them are on their way: arrived() before their layers are read

    def arrived(self, layer: int) -> bool:
        """Waits for the found blocks' KV of this layer. False: some of it will not come. Then
        `reused` and `blocks` are shorter, and the request begins anew behind them."""

    def extend(self) -> None:
        """Append an empty block to write to."""

    def complete(self, tokens: list[int], made: str) -> None:
        """A block is full, all layers of it; `tokens` is the whole sequence up to its end."""

    def close(self) -> None:
        """Let go of all blocks; what was registered stays findable."""


class KVCache(Protocol):
    counts: Counts

    def open(self, tokens: list[int], reuse: bool, registered: Registered) -> Sequence:
        """Blocks for a prompt. At least one of its tokens is left to compute."""

    def enqueued(self, name: int, tokens: list[int]) -> None:
        """A prompt that will be opened; begun() says that its turn has come. Any thread."""

    def begun(self, name: int) -> None: ...

    def idle(self) -> None:
        """Nothing waits: what was put off may be done now. Any thread."""

    def close(self) -> None:
        """Give everything back."""


def reusable_blocks(tokens: list[int], block_tokens: int) -> int:
    """Full blocks of a prompt that may be taken from a cache: its last token must be computed,
    or there are no logits."""
    return (len(tokens) - 1) // block_tokens


class Here:
    """What is found by a sequence that waits for nothing."""

    arriving = False

    def arrived(self, layer: int) -> bool:
        return True


class NoLine:
    """A cache that makes nothing of the requests that wait."""

    def enqueued(self, name: int, tokens: list[int]) -> None:
        pass

    def begun(self, name: int) -> None:
        pass

    def idle(self) -> None:
        pass


class PartedBlock:
    """A block whose layers lie in several tensors, group by group; not all need be there."""

    def __init__(self, parts: list[torch.Tensor | None], per_part: int) -> None:
        self.parts, self._per_part = parts, per_part

    def __getitem__(self, at: Any) -> torch.Tensor:
        layer, rest = (at[0], at[1:]) if isinstance(at, tuple) else (at, ())
        part = self.parts[layer // self._per_part]
        assert part is not None, f"layer {layer} is read before it has arrived"
        return part[(layer % self._per_part, *rest)]


class BlockMaker:
    """Fresh private blocks; freed ones are taken again, as allocating touches every page."""

    def __init__(self, config: ModelConfig, block_tokens: int) -> None:
        self._shape = config.block_shape(block_tokens)
        self._spare: list[torch.Tensor] = []

    def take(self) -> torch.Tensor:
        return self._spare.pop() if self._spare else torch.empty(self._shape)

    def give(self, blocks: list[torch.Tensor]) -> None:
        self._spare.extend(blocks)


@dataclass
class OffSequence(Here):
    """Private blocks only; forgets them at close."""

    maker: BlockMaker
    blocks: list[Any] = field(default_factory=list)
    reused: list[KeyBytes] = field(default_factory=list)

    def extend(self) -> None:
        self.blocks.append(self.maker.take())

    def complete(self, tokens: list[int], made: str) -> None:
        pass

    def close(self) -> None:
        self.maker.give(self.blocks)
        self.blocks = []


class OffCache(NoLine):
    def __init__(self, config: ModelConfig, block_tokens: int) -> None:
        self.counts = Counts()
        self._config, self._block_tokens = config, block_tokens
        self._maker = BlockMaker(config, block_tokens)

    def open(self, tokens: list[int], reuse: bool, registered: Registered) -> OffSequence:
        return OffSequence(self._maker)

    def close(self) -> None:
        self._maker = BlockMaker(self._config, self._block_tokens)


def chain_keys(tokens: list[int], block_tokens: int) -> list[KeyBytes]:
    """Keys for a cache of one process, where nothing but the tokens can differ."""
    keys: list[KeyBytes] = []
    parent = b""
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        block = tokens[end - block_tokens : end]
        digest = hashlib.sha256(parent + b"".join(t.to_bytes(4, "little") for t in block))
        parent = digest.digest()[:16]
        keys.append(parent)
    return keys


class LocalStore:
    """Blocks by key, the least recently used one dropped first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[KeyBytes, torch.Tensor] = OrderedDict()

    def get(self, key: KeyBytes) -> torch.Tensor | None:
        block = self._blocks.get(key)
        if block is not None:
            self._blocks.move_to_end(key)
        return block

    def put(self, key: KeyBytes, block: torch.Tensor) -> None:
        self._blocks[key] = block
        self._blocks.move_to_end(key)
        while len(self._blocks) > self._capacity:
            # Sequences in flight hold the tensor itself, so dropping the entry is enough.
            self._blocks.popitem(last=False)


class LocalSequence(Here):
    def __init__(
        self, cache: LocalCache, tokens: list[int], reuse: bool, registered: Registered
    ) -> None:
        self.blocks: list[Any] = []
        self.reused: list[KeyBytes] = []
        self._cache, self._registered = cache, registered
        usable = reusable_blocks(tokens, cache.block_tokens) if reuse else 0
        for key in chain_keys(tokens, cache.block_tokens)[:usable]:
            block = cache.store.get(key)
            if block is None:
                break
            self.blocks.append(block)
            self.reused.append(key)

    def extend(self) -> None:
        self.blocks.append(torch.empty(self._cache.shape))

    def complete(self, tokens: list[int], made: str) -> None:
        keys = chain_keys(tokens, self._cache.block_tokens)
        self._cache.store.put(keys[-1], self.blocks[-1])
        self._cache.counts.registered += 1
        self._registered(keys[-1], keys[-2] if len(keys) > 1 else b"", made)

    def close(self) -> None:
        self.blocks = []


class LocalCache(NoLine):
    """One process's prefix cache: what each engine has without kvshm."""

    def __init__(self, config: ModelConfig, block_tokens: int, capacity: int = 1024) -> None:
        self.counts = Counts()
        self.block_tokens = block_tokens
        self.shape = config.block_shape(block_tokens)
        self.store = LocalStore(capacity)

    def open(self, tokens: list[int], reuse: bool, registered: Registered) -> LocalSequence:
        return LocalSequence(self, tokens, reuse, registered)

    def close(self) -> None:
        self.store = LocalStore(0)
