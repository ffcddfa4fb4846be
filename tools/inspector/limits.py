# SPDX-License-Identifier: Apache-2.0
"""Tenants and pins: how many blocks each has by the words, and what limits say."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import layout
from .view import Array, View, state_of


@dataclass
class Tenant:
    """Who has a name, a limit or a block. `counted`: what allocations go by; a death may put it off
    `used_blocks` until it is reaped. None: no quota, no weight, no shares, nothing is counted."""

    tenant: int
    name: str
    used_blocks: int
    counted_blocks: int | None
    quota_blocks: int | None
    weight: int | None
    share_blocks: int | None


def tenants(view: View, words: Array) -> list[Tenant]:
    rows, limits = view.tenants, int(view.superblock["limits"])
    mine = view.hot["tenant"][state_of(words) != layout.FREE] % layout.TENANTS
    used = np.bincount(mine, minlength=layout.TENANTS)
    weights = np.where(rows["weight"] == 0, 1, rows["weight"]).astype(np.int64)
    total = int(weights[used > 0].sum())
    found = []
    for number, row in enumerate(rows):
        quota, weight, has = int(row["quota"]), int(row["weight"]), int(used[number])
        if not (row["name_hash"] or quota or weight or has):
            continue
        share = (view.geometry.blocks * int(weights[number]) // total
                 if limits & layout.SHARED and has else None)
        found.append(Tenant(number, bytes(row["name"]).decode("utf-8", "replace"), has,
                            int(row["used"]) if limits else None, quota or None, weight or None,
                            share))
    return found


def pinned(view: View, words: Array) -> Array:
    """Per block: is it of priority 100?"""
    priority = view.hot["priority"] & (layout.FOR_A_WHILE - 1)
    return np.asarray((state_of(words) != layout.FREE) & (priority >= layout.PINNED))


def pins(view: View, words: Array) -> dict[str, int | None]:
    budget = int(view.superblock["pin_budget"])
    return {"pinned_blocks": int(np.count_nonzero(pinned(view, words))),
            "budget_blocks": budget - 1 if budget else None}
