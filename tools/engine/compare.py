# SPDX-License-Identifier: Apache-2.0
"""Answers with reuse against answers without."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .asking import Reply

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Comparison:
    bitwise: bool | None  # None: the engine tells no logits
    max_diff: float | None
    tokens_equal: bool  # where the gap between the two best exceeds the tolerance


def compare(warm: Reply, cold: Reply) -> Comparison:
    """Token by token, up to the first that differs: after it the two continue different texts.
    Without logits all tokens must be equal."""
    if warm.logits is None or cold.logits is None:
        return Comparison(None, None, warm.tokens == cold.tokens)
    max_diff, equal = 0.0, True
    compared = 0
    for ours, theirs, row, other in zip(
        warm.tokens, cold.tokens, warm.logits, cold.logits, strict=True
    ):
        compared += 1
        max_diff = max(max_diff, float(np.abs(row - other).max()))
        if ours != theirs:
            best, second = np.sort(other)[:-3:-1]
            equal = bool(best - second <= TOLERANCE)
            break
    bitwise = bool(np.array_equal(warm.logits[:compared], cold.logits[:compared])) and equal
    return Comparison(bitwise, max_diff, equal)
