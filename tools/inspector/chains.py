# SPDX-License-Identifier: Apache-2.0
"""Chains of cached blocks, by the links that say which block follows which.

A block is reachable if every block before it in its chain is cached, too: a prefix match stops at
the first gap. Links are hints, so this is a figure, not a fact.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from . import layout
from .view import Array, View, state_of

_LOW = np.uint64(0xFFFFFFFF)


def tally(view: View, words: Array) -> dict[str, Any]:
    """cached: blocks READY; unreachable: those of them behind a gap of their chain; share of them,
    None where nothing is cached. words: of View.words()."""
    ready = (state_of(words) & np.uint64(3)) == layout.READY  # READY_LAST, too
    cached, behind = int(ready.sum()), unreachable(view, ready)
    return dict(cached_blocks=cached, unreachable_blocks=behind,
                unreachable_share=round(behind / cached, 4) if cached else None)


def unreachable(view: View, ready: Array) -> int:
    """Ready blocks of which an ancestor is missing."""
    blocks = len(ready)
    parent = np.array(view.hot["parent"], np.uint32)
    root = parent == layout.NONE
    inside = parent < blocks
    up = np.where(inside, parent, 0).astype(np.int64)
    check = (view.hot["key"][:, 0][up] & _LOW).astype(np.uint32)
    whole = inside & ready[up] & (np.array(view.hot["parent_check"]) == check)
    # Of each block: is the way so far whole, and where does it lead? Twice as far in each round;
    # a root leads to itself, a circle (damage) ends with the rounds.
    fine = root | whole
    to = np.where(whole, up, np.arange(blocks))
    for _ in range(max(1, blocks.bit_length())):
        following = to[to]
        fine &= fine[to]
        if np.array_equal(following, to):
            break
        to = following
    return int((ready & ~fine).sum())
