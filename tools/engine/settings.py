# SPDX-License-Identifier: Apache-2.0
"""What a worker must know, as one line of JSON on its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from .config import ModelConfig, model_config

IN_PLACE = "in-place"
COPY = "copy"
OFF = "off"
VLLM = "vllm"  # its own cache and a connector; not a mode of the built-in engine
MODES = (IN_PLACE, COPY, OFF)


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

    @property
    def model(self) -> ModelConfig:
        return model_config(self.tiny, self.seed)

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Settings:
        return cls(**json.loads(text))
