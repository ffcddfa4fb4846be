# SPDX-License-Identifier: Apache-2.0
"""The memory of keys that left an arena: hints, which nobody orders or checks.

Sets of four places, chosen by the key. A place torn by a race, a kill or damage is forgotten, or
tells a wrong time; nothing else depends on it. Nothing here needs the library.
"""
from __future__ import annotations

import time
from typing import NamedTuple

from . import layout
from .view import View

WAYS = 4
REASONS = {1: "evicted", 2: "removed", 3: "closed"}  # 0: an empty place
_MIX = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


class Ghost(NamedTuple):
    """when: seconds since the epoch, None if that cannot be. uses: 0 to 15, in the end."""

    reason: str
    when: int | None
    uses: int


def room(view: View) -> int:
    """Keys that it has places for."""
    return layout.ghost_places(view.geometry.blocks)


def find(view: View, key: bytes) -> Ghost | None:
    """What is remembered of a key of 16 bytes."""
    first, ways, tag = place(view.geometry.blocks, key)
    for at, gone in view.ghosts[first:first + ways].tolist():
        if at == tag and gone & 3:
            when = int(view.superblock["created_at"]) + (gone >> 32)
            return Ghost(REASONS[gone & 3], when if when <= time.time() else None,
                         gone >> 2 & 15)
    return None


def place(blocks: int, key: bytes) -> tuple[int, int, int]:
    """(first place of its set, places of a set, tag) of a key."""
    low, high = (int.from_bytes(key[at:at + 8], "little") for at in (0, 8))
    mixed = low * _MIX & _WORD
    sets = layout.ghost_places(blocks) // WAYS
    return (mixed * sets >> 64) * WAYS, WAYS, high ^ mixed
