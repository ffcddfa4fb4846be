# SPDX-License-Identifier: Apache-2.0
"""Grouped-query attention that reads KV blocks where they lie.

Nothing gathers the context into one tensor: each block is multiplied in place, only scores go
through a workspace. The blocks may be views of shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from .config import ModelConfig


class Block(Protocol):
    """The KV of block_tokens tokens: [layer, K or V, head, token, channel], layer given."""

    def __getitem__(self, at: Any, /) -> torch.Tensor: ...


class Rotary:
    """Rotary positions, halves paired; the table grows with the longest context seen."""

    def __init__(self, config: ModelConfig) -> None:
        half = config.head_dim // 2
        self._frequencies = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        self._cos = torch.empty(0, half)
        self._sin = torch.empty(0, half)

    def __call__(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """x: (tokens, heads, head_dim), its first token at position `start`."""
        end = start + x.shape[0]
        if end > self._cos.shape[0]:
            angles = torch.arange(max(2 * end, 1024), dtype=torch.float64)[:, None]
            angles = angles * self._frequencies
            self._cos, self._sin = angles.cos().float(), angles.sin().float()
        cos, sin = self._cos[start:end, None], self._sin[start:end, None]
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class PagedAttention:
    """Attention of a run of tokens, all in the last block, over that block and those before."""

    def __init__(self, config: ModelConfig, block_tokens: int) -> None:
        self._kv_heads = config.kv_heads
        self._group = config.heads // config.kv_heads
        self._head_dim = config.head_dim
        self._block_tokens = block_tokens
        self._scale = 1.0 / math.sqrt(config.head_dim)
        self._scores = torch.empty(0)

    def _workspace(self, blocks: int, rows: int) -> torch.Tensor:
        shape = (blocks, self._kv_heads, rows, self._block_tokens)
        need = math.prod(shape)
        if need > self._scores.numel():
            self._scores = torch.empty(2 * need)
        return self._scores[:need].view(shape)

    def __call__(
        self, query: torch.Tensor, blocks: Sequence[Block], layer: int, start: int
    ) -> torch.Tensor:
        """query: (tokens, heads, head_dim) at positions start, start + 1, ...; K and V of these
        tokens are in blocks[-1] already. Returns (tokens, heads * head_dim)."""
        tokens = query.shape[0]
        rows = self._group * tokens
        offset = start % self._block_tokens
        valid = offset + tokens
        q = (query * self._scale).view(tokens, self._kv_heads, self._group, self._head_dim)
        q = q.permute(1, 2, 0, 3).reshape(self._kv_heads, rows, self._head_dim)

        full = len(blocks) - 1
        scores = self._workspace(full, rows)
        for i in range(full):
            torch.bmm(q, blocks[i][layer, 0].transpose(1, 2), out=scores[i])
        # The last block is cut to what is written: beyond that lie bytes of a former life.
        own_keys, own_values = blocks[full][layer, :, :, :valid]
        own = torch.bmm(q, own_keys.transpose(1, 2))
        if tokens > 1:
            later = torch.ones(tokens, valid, dtype=torch.bool).triu_(offset + 1)
            own.view(self._kv_heads, self._group, tokens, valid).masked_fill_(later, -math.inf)

        peak = own.amax(2, keepdim=True)
        if full:
            peak = torch.maximum(peak, scores.amax((0, 3)).unsqueeze(2))
            scores.sub_(peak).exp_()
        own.sub_(peak).exp_()
        total = own.sum(2, keepdim=True)
        if full:
            total += scores.sum((0, 3)).unsqueeze(2)
        mixed = torch.bmm(own, own_values)
        for i in range(full):
            mixed.baddbmm_(scores[i], blocks[i][layer, 1])
        mixed /= total
        mixed = mixed.view(self._kv_heads, self._group, tokens, self._head_dim)
        return mixed.permute(2, 0, 1, 3).reshape(tokens, -1)
