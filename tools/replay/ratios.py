# SPDX-License-Identifier: Apache-2.0
"""What hits are worth: of the blocks, of the tokens, of the computation."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .trace import Trace, Whole

# Tokens of context at which attending to it costs an 8B-class model as much as its linear layers.
EQUAL_AT = 30_500.0


class Ratios(NamedTuple):
    """Shares, 0 to 1."""

    block: float
    token: float
    compute: float


def ratios(trace: Trace, hits: npt.NDArray[np.int32]) -> Ratios:
    """hits: of each request, its cached leading blocks."""
    found = hits.astype(np.int64)
    tokens = np.minimum(found * trace.block_tokens, trace.tokens)
    work = _work(found, trace.block_tokens), _work(trace.lengths, trace.block_tokens)
    return Ratios(_share(found.sum(), trace.accesses), _share(tokens.sum(), trace.tokens.sum()),
                  _share(*work))


def _work(blocks: Whole, block_tokens: int) -> float:
    """A block at position p, in tokens, costs 1 + p / EQUAL_AT."""
    before = blocks * (blocks - 1) // 2  # sum of 0, 1 ... blocks - 1
    return float(blocks.sum()) + float(before.sum()) * block_tokens / EQUAL_AT


def _share(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else 0.0
