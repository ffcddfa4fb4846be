# SPDX-License-Identifier: Apache-2.0
"""What the bytes of a block must be: a function of its key, the offset, and the life of the block.

A checker can therefore tell right bytes from those of an earlier life (stale), of another key
(foreign), of a half-written block (torn) and of one never written. Usable in workers, too.
"""
from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


class Bytes(Enum):
    RIGHT = "right"
    STALE = "of another life of this key"
    FOREIGN = "of another key"
    TORN = "a mixture"
    UNWRITTEN = "never written"


def _mix(value: int) -> int:
    """splitmix64's last step: a bijection that spreads every bit."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def _base(key: bytes, life: int) -> int:
    low, high = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    return _mix(_mix(_mix(low + 1 & _MASK) ^ high) ^ life)


def payload(key: Any, nbytes: int, life: int = 0) -> np.ndarray:
    """`nbytes` (a multiple of 8) for a key of 16 bytes and a life, as uint8."""
    steps = np.arange(1, nbytes // 8 + 1, dtype=np.uint64) * _ODD
    return (steps ^ np.uint64(_base(bytes(key), life))).view(np.uint8)


def judge(data: Any, key: Any, life: int = 0, other_lives: int = 64) -> Bytes:
    """What `data` is, where the payload of `key` in `life` was promised."""
    words = np.frombuffer(data, np.uint8).view(np.uint64)
    steps = np.arange(1, len(words) + 1, dtype=np.uint64) * _ODD
    bases = words ^ steps
    if not words.any():
        return Bytes.UNWRITTEN
    if (bases != bases[0]).any():
        return Bytes.TORN
    base = int(bases[0])
    if base == _base(bytes(key), life):
        return Bytes.RIGHT
    near = range(max(0, life - other_lives), life + other_lives)
    return Bytes.STALE if any(base == _base(bytes(key), n) for n in near) else Bytes.FOREIGN


def raw_keys(first: int, n: int) -> np.ndarray:
    """n distinct keys, well mixed, never zero: (n, 16) uint8. Equal in every process."""
    counter = np.arange(first + 1, first + n + 1, dtype=np.uint64)
    words = np.empty((n, 2), np.uint64)
    for column, salt in enumerate((0x1234567, 0x89ABCDE)):
        value = counter * _ODD + np.uint64(salt)
        value ^= value >> np.uint64(31)
        value *= np.uint64(0xBF58476D1CE4E5B9)
        words[:, column] = value ^ (value >> np.uint64(29))
    words[:, 1] |= np.uint64(1)
    return words.view(np.uint8)


def store(arena: Any, keys: np.ndarray, **options: Any) -> Any:
    """Allocate, fill with the pattern and register `keys`: the Lease that holds them."""
    with arena.allocate(len(keys), keys=keys, **options) as fill:
        write(arena, fill, keys)
        return fill.register()


def write(arena: Any, fill: Any, keys: np.ndarray) -> None:
    for i, handle in enumerate(fill.handles):
        fill.copy_in(i, payload(keys[i], arena.block_bytes, handle.seq))


def verify(lease: Any, keys: np.ndarray) -> list[str]:
    """What is wrong with the bytes of a lease (of match, for `keys`); [] is fine."""
    wrong = []
    for i in range(len(lease)):
        handle = lease.handle(i)
        with lease.view(i) as view:
            found = judge(view, keys[i], handle.seq)
        if found is not Bytes.RIGHT:
            wrong.append(f"block {handle.id}, life {handle.seq}, for key {i}: {found.value}")
    return wrong


def wrong_blocks(arena: Any) -> list[str]:
    """Every visible block of a quiet arena against its own key; [] is fine."""
    wrong = []
    for number in range(arena.blocks):
        info = arena.block(number)
        if info.state not in (2, 6):
            continue
        lease = arena.upgrade((number, info.seq), touch=False)
        if lease is None:
            wrong.append(f"block {number} is READY and cannot be held")
            continue
        with lease, lease.view(0) as view:
            found = judge(view, info.key, info.seq)
        if found is not Bytes.RIGHT:
            wrong.append(f"block {number}, life {info.seq}: {found.value}")
    return wrong
