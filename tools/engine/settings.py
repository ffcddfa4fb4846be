# SPDX-License-Identifier: Apache-2.0
"""What a worker must know, as one line of JSON on its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from .config import ModelConfig, model_config

IN_PLACE = "in-place"
COPY = "copy"
OFF = "off"
VLLM = "vllm"  # its own cache and a connector; not a mode of the built-in engine
MODES = (IN_PLACE, COPY, OFF)
ENQUEUE = "enqueue"
PREFETCHES = (OFF, ENQUEUE)


@dataclass(frozen=True)
class Settings:
    kv: str
    tiny: bool
    seed: int
    block_tokens: int
    arena: str = ""  # name; empty with kv off
    directory: str | None = None  # where the arena lies, if not on the shm mount
    label: str = "worker"
    wait_limit: float = 20.0  # seconds to await a block that another worker is computing
    layers: int = 0  # of the model; 0: as many as it has
    layer_groups: int = 1  # arena blocks of one KV block; the model's layers are a multiple
    own_blocks: int = 4096  # of a copying worker's own cache; more than the demo ever has
    tier: tuple[str, ...] = ()  # files; none: memory only
    tier_size: str = "0"
    tier_write: str = "through"  # when blocks go down, as tier_options; idle: when nobody waits
    tier_wait: float = 10.0  # seconds to await what a request loads; then it is computed
    prefetch: str = OFF  # enqueue: what the disk has of a request is loaded when it comes
    prefetch_ahead: int = 0  # blocks of those that wait; 0: all

    @property
    def model(self) -> ModelConfig:
        model = model_config(self.tiny, self.seed)
        return replace(model, layers=self.layers) if self.layers else model

    @property
    def part_bytes(self) -> int:
        """Of an arena block: the KV of one layer group."""
        return self.model.block_bytes(self.block_tokens) // self.layer_groups

    def __post_init__(self) -> None:
        if self.layer_groups < 1 or self.model.layers % self.layer_groups:
            raise ValueError(f"{self.model.layers} layers are not {self.layer_groups} groups")
        if self.prefetch not in PREFETCHES:
            raise ValueError(f"prefetch={self.prefetch!r}: one of {', '.join(PREFETCHES)}")

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Settings:
        found = json.loads(text)
        return cls(**found | {"tier": tuple(found["tier"])})
