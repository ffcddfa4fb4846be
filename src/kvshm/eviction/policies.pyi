# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvshm.attach import Attachment

@dataclass(frozen=True)
class Policy:
    name: str
    shift: Sequence[int] = ...
    rank: Sequence[int] = ...
    sample: int = 24
    age_period: int = 7
    second_chance: bool = False
    memory: bool = False
    sketch: bool = False
    once: bool = False
    leaf_queue: bool = False
    queues: bool = False
    touches: bool = False
    young: int = 0
    small: int = 512
    version: int = 0

PRESETS: dict[str, Policy]
WEIGHTS: tuple[dict[str, Any], ...]
START_WEIGHT: int

def levels(*pairs: tuple[int, int]) -> tuple[int, ...]: ...
def multi_lru(
    warm: int = 3, hot: int = 8, very_hot: int = 15, sketch: bool = False
) -> Policy: ...
def weighted(weight: int) -> Policy: ...
def get_policy(arena: Attachment) -> Policy: ...
def set_policy(arena: Attachment, policy: Policy | str) -> Policy: ...
