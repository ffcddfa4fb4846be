# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from dataclasses import dataclass

from kvshm.attach import Attachment

@dataclass(frozen=True)
class Policy:
    name: str
    shift: Sequence[int] = ...
    sample: int = 20
    second_chance: bool = False
    age_period: int = 10
    version: int = 0

PRESETS: dict[str, Policy]

def levels(*pairs: tuple[int, int]) -> tuple[int, ...]: ...
def get_policy(arena: Attachment) -> Policy: ...
def set_policy(arena: Attachment, policy: Policy | str) -> Policy: ...
