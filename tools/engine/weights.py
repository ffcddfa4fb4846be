# SPDX-License-Identifier: Apache-2.0
"""Deterministic random weights: every process that asks for the same config gets the same bits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .config import ModelConfig

# Query scale and output scale above 1 make attention pick few tokens and spread the logits; with
# plain unit variance every softmax is nearly flat, and an error in the KV would hardly show.
QUERY_GAIN = 2.0
LOGIT_GAIN = 3.0


@dataclass(frozen=True)
class LayerWeights:
    qkv: torch.Tensor  # (heads + 2 * kv_heads) * head_dim, dim
    out: torch.Tensor  # dim, heads * head_dim
    gate_up: torch.Tensor  # 2 * ffn, dim
    down: torch.Tensor  # dim, ffn
    attention_norm: torch.Tensor
    ffn_norm: torch.Tensor


@dataclass(frozen=True)
class Weights:
    embedding: torch.Tensor
    layers: list[LayerWeights]
    final_norm: torch.Tensor
    logits: torch.Tensor


def make_weights(config: ModelConfig) -> Weights:
    generator = torch.Generator().manual_seed(config.seed)

    def normal(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        tensor = torch.empty(rows, columns).normal_(generator=generator)
        return tensor.mul_(gain / math.sqrt(columns))

    def norm() -> torch.Tensor:
        return torch.empty(config.dim).uniform_(0.8, 1.2, generator=generator)

    query = config.heads * config.head_dim
    rows = query + 2 * config.kv_heads * config.head_dim
    embedding = torch.empty(config.vocab, config.dim).normal_(generator=generator)
    layers = []
    for _ in range(config.layers):
        qkv = normal(rows, config.dim)
        qkv[:query].mul_(QUERY_GAIN)
        layers.append(
            LayerWeights(
                qkv=qkv,
                out=normal(config.dim, query),
                gate_up=normal(2 * config.ffn, config.dim),
                down=normal(config.dim, config.ffn),
                attention_norm=norm(),
                ffn_norm=norm(),
            )
        )
    return Weights(embedding, layers, norm(), normal(config.vocab, config.dim, LOGIT_GAIN))
