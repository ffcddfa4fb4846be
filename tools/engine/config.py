# SPDX-License-Identifier: Apache-2.0
"""Shape of the demo model, and what that shape means in bytes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace

FLOAT_BYTES = 4


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. All of its weights follow from this and the seed."""

    dim: int = 1024
    layers: int = 8
    heads: int = 16
    kv_heads: int = 4
    head_dim: int = 64
    ffn: int = 3072
    vocab: int = 264
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even for rotary positions")

    def block_shape(self, block_tokens: int) -> tuple[int, int, int, int, int]:
        """One KV block: layer, K or V, head, token, channel (all layers of a block together)."""
        return (self.layers, 2, self.kv_heads, block_tokens, self.head_dim)

    def block_bytes(self, block_tokens: int) -> int:
        count = 1
        for extent in self.block_shape(block_tokens):
            count *= extent
        return count * FLOAT_BYTES

    def parameters(self) -> int:
        attention = self.dim * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.dim * self.ffn + 2 * self.dim
        return self.layers * layer + 2 * self.vocab * self.dim + self.dim

    def fingerprint(self, torch_version: str) -> str:
        """Names the weights: they are a function of the shape, the seed and torch's generator."""
        text = json.dumps({"torch": torch_version, **asdict(self)}, sort_keys=True)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


DEFAULT = ModelConfig()
TINY = ModelConfig(dim=64, layers=2, heads=4, kv_heads=2, head_dim=16, ffn=128)


def model_config(tiny: bool, seed: int) -> ModelConfig:
    return replace(TINY if tiny else DEFAULT, seed=seed)


def default_block_tokens(tiny: bool) -> int:
    """A prefill chunk is one block, so the block must be large enough for an efficient product."""
    return 16 if tiny else 64
