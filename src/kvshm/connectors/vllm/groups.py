# SPDX-License-Identifier: Apache-2.0
"""What the connector needs to know of vLLM's KV cache groups, read once from KVCacheConfig.

A group is a set of layers with one block table. Full attention needs every block of a prefix; a
sliding window only the last ones before the boundary at which a request goes on, and chunked local
attention those of the chunk that the boundary lies in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvshm.errors import Unsupported

MAX_RANKS = 32  # KVSHM_MAX_PARTS
_FULL = ("FullAttentionSpec", "MLAAttentionSpec")
_WINDOW = ("SlidingWindowSpec", "SlidingWindowMLASpec")
_CHUNKED = ("ChunkedLocalAttentionSpec",)
_UNIFORM = "UniformTypeKVCacheSpecs"


@dataclass(frozen=True)
class Group:
    index: int  # in KVCacheConfig.kv_cache_groups, and in the block tables
    kind: str  # name of its spec's class
    block_tokens: int
    hashes: int  # block hashes of a request that make one block
    layers: tuple[str, ...]
    page_bytes: tuple[int, ...]  # of one block, by layer, on one rank
    window: int | None = None  # tokens before a boundary that are still looked at
    chunk: int | None = None

    @property
    def partial(self) -> bool:
        """Not every block of a prefix is needed."""
        return self.window is not None or self.chunk is not None

    @property
    def slice_bytes(self) -> int:
        return sum(self.page_bytes)

    def first_needed(self, boundary: int) -> int:
        """Index of the first block that the token at position `boundary` looks at."""
        if self.window is not None:
            return max(0, boundary - self.window) // self.block_tokens
        if self.chunk is not None:
            return boundary // self.chunk * self.chunk // self.block_tokens
        return 0


def tokens_per_hash(vllm_config: Any, kv_cache_config: Any) -> int:
    """Of a request's block hashes: fewer than a block has where groups have several sizes."""
    return int(getattr(kv_cache_config, "hash_block_size", None)
               or vllm_config.cache_config.block_size)


def groups_of(kv_cache_config: Any, hash_tokens: int) -> tuple[Group, ...]:
    """The groups that are transferred. Unsupported names the group whose state cannot be kept."""
    found = []
    for index, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = group.kv_cache_spec
        if not getattr(group, "enable_kv_transfer", True):
            continue
        if not getattr(spec, "prefix_cacheable", True):
            continue
        if getattr(group, "host_resident", False):
            raise Unsupported(f"KV cache group {index} lives in host memory: not supported")
        found.append(_group(index, group, spec, hash_tokens))
    if not found:
        raise Unsupported("the model has no KV cache group that can be reused by prefix")
    return tuple(found)


def _group(index: int, group: Any, spec: Any, hash_tokens: int) -> Group:
    kind = type(spec).__name__
    layers = tuple(group.layer_names)
    specs: Sequence[Any] = [spec] * len(layers)
    if kind == _UNIFORM:
        # The scheduler's copy has one representative for all layers of a kind.
        inner = spec.kv_cache_specs
        specs = [inner.get(name) or next(iter(inner.values())) for name in layers]
    names = {type(one).__name__ for one in specs}
    window = chunk = None
    if names <= set(_WINDOW):
        windows = {one.sliding_window - 1 + getattr(one, "extra_retained_tokens", 0)
                   for one in specs}
        window = max(windows)
    elif names <= set(_CHUNKED):
        chunk = specs[0].attention_chunk_size
    elif not names <= set(_FULL):
        raise Unsupported(
            f"KV cache group {index} ({', '.join(layers[:2])} ...) is of kind "
            f"{', '.join(sorted(names))}; supported are {', '.join(_FULL + _WINDOW + _CHUNKED)}. "
            "Run this model without the connector")
    if spec.block_size % hash_tokens:
        raise Unsupported(f"KV cache group {index} has blocks of {spec.block_size} tokens, which "
                          f"{hash_tokens} tokens a block hash do not divide")
    return Group(index, kind, spec.block_size, spec.block_size // hash_tokens, layers,
                 tuple(one.page_size_bytes for one in specs), window, chunk)


def boundary_tokens(groups: Sequence[Group]) -> int:
    """A request can go on after a multiple of so many tokens."""
    return math.lcm(*(group.block_tokens for group in groups))


def fails_by_request(kv_cache_config: Any, groups: Sequence[Group]) -> bool:
    """Whether a failed load is told by request, not by block: with several groups block ids are
    no names, and before a block of a window there may be nothing to go on from."""
    return len(kv_cache_config.kv_cache_groups) > 1 or groups[0].partial


def writers_of(groups: Sequence[Group], ranks: int) -> int:
    """Ranks that write a slice of each block. Unsupported: more than a block has slices."""
    writers = 1 if replicated(groups) else ranks
    if writers > MAX_RANKS:
        raise Unsupported(f"{writers} ranks: a block has at most {MAX_RANKS} slices")
    return writers


def replicated(groups: Sequence[Group]) -> bool:
    """Whether all tensor-parallel ranks hold the same KV: it is stored once."""
    return all("MLA" in group.kind for group in groups)
