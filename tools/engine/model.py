# SPDX-License-Identifier: Apache-2.0
"""The demo model: a decoder-only transformer on the CPU whose KV lives in blocks of the caller."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from .attention import Block, PagedAttention, Rotary
from .config import ModelConfig
from .weights import Weights, make_weights


class Model:
    def __init__(
        self, config: ModelConfig, block_tokens: int, weights: Weights | None = None
    ) -> None:
        self.config = config
        self.block_tokens = block_tokens
        self.weights = make_weights(config) if weights is None else weights
        self._rotary = Rotary(config)
        self._attention = PagedAttention(config, block_tokens)

    @torch.inference_mode()
    def forward(
        self, tokens: Sequence[int], start: int, blocks: Sequence[Block]
    ) -> torch.Tensor:
        """Compute tokens at positions start, start + 1, ... that all lie in blocks[-1]; their K
        and V are written there. Returns the logits after the last of them."""
        x = self.through(self.embed(tokens), start, blocks, range(self.config.layers))
        return self.logits(x)

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        return self.weights.embedding[torch.tensor(tokens)]

    @torch.inference_mode()
    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """After the last token, from what the last layer made of all."""
        weights = self.weights
        return F.linear(self._norm(x[-1:], weights.final_norm), weights.logits)[0]

    @torch.inference_mode()
    def through(
        self, x: torch.Tensor, start: int, blocks: Sequence[Block], layers: range
    ) -> torch.Tensor:
        """Some of the layers of forward(). Which tokens and layers go together changes no bit."""
        config, count = self.config, x.shape[0]
        offset = start % self.block_tokens
        if offset + count > self.block_tokens or start // self.block_tokens != len(blocks) - 1:
            raise ValueError(
                f"{count} tokens at {start} do not lie in the last of {len(blocks)} blocks "
                f"of {self.block_tokens} tokens"
            )
        split = [config.heads, config.kv_heads, config.kv_heads]
        for index in layers:
            layer = self.weights.layers[index]
            h = self._norm(x, layer.attention_norm)
            qkv = F.linear(h, layer.qkv).view(count, -1, config.head_dim)
            query, keys, values = qkv.split(split, dim=1)
            # Produced here and put where it belongs: no copy of it exists elsewhere.
            own = blocks[-1][index, :, :, offset : offset + count]
            own[0].copy_(self._rotary(keys, start).transpose(0, 1))
            own[1].copy_(values.transpose(0, 1))
            mixed = self._attention(self._rotary(query, start), blocks, index, start)
            x = x + F.linear(mixed, layer.out)
            gate, up = F.linear(self._norm(x, layer.ffn_norm), layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return x

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.config.dim,), weight, self.config.norm_eps)
