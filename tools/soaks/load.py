# SPDX-License-Identifier: Apache-2.0
"""What the engines are asked: prompts that share their beginnings, each of them many times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    tokens: list[int]
    new: int


@dataclass(frozen=True)
class Shape:
    """Lengths in tokens. Several prompts of one trunk follow one of its branches."""

    requests: int
    trunk: tuple[int, int]
    branch: tuple[int, int]
    tail: tuple[int, int]
    new: tuple[int, int]
    vocabulary: int
    per_trunk: int = 4


def requests_of(shape: Shape, seed: int) -> list[Asked]:
    chance = random.Random(seed)

    def tokens(of: tuple[int, int]) -> list[int]:
        return [chance.randrange(shape.vocabulary) for _ in range(chance.randint(*of))]

    trunks = [tokens(shape.trunk) for _ in range(max(1, shape.requests // shape.per_trunk))]
    branches = [[[], tokens(shape.branch)] for _ in trunks]
    found = []
    for i in range(shape.requests):
        trunk = i % len(trunks)
        prompt = trunks[trunk] + chance.choice(branches[trunk]) + tokens(shape.tail)
        found.append(Asked(prompt, chance.randint(*shape.new)))
    return found


def working_set(requests: Sequence[Asked], block_tokens: int) -> int:
    """Different blocks that the requests fill, decoding included. The last token has no KV."""
    prompts = {tuple(one.tokens[:end]) for one in requests
               for end in range(block_tokens, len(one.tokens) + 1, block_tokens)}
    decoded = sum((len(one.tokens) + one.new - 1) // block_tokens - len(one.tokens) // block_tokens
                  for one in requests)
    return len(prompts) + decoded
