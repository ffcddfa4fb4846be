# SPDX-License-Identifier: Apache-2.0
"""A look at an arena without mapping it: for `kvshm list`, which meets every object on the mount.

An object that its owner cuts short meanwhile would end a process that has it mapped (SIGBUS); here
a read comes back short, and says so.
"""
from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from . import dtypes, layout, locks

_CHUNK = 16384  # descriptors a read: 1 MiB


class Cut(Exception):
    """The object became shorter than its own geometry says."""


class Glance(NamedTuple):
    free: int   # blocks
    alive: int  # processes
    dead: int   # slots in use whose process is gone


def _read(fd: int, size: int, at: int) -> bytes:
    data = os.pread(fd, size, at)
    if len(data) != size:
        raise Cut(f"cut short while it was read: {at + len(data)} bytes are left")
    return data


def glance(fd: int, g: layout.Geometry) -> Glance:
    """What stands in one line of the list."""
    free = 0
    size = dtypes.HOT.itemsize
    for first in range(0, g.blocks, _CHUNK):
        count = min(_CHUNK, g.blocks - first)
        words = np.frombuffer(_read(fd, count * size, g.hot_off + first * size),
                              dtypes.HOT)["word"]
        states = (words >> np.uint64(layout.STATE_SHIFT)) & np.uint64(7)
        free += int(np.count_nonzero(states == layout.FREE))
    slots = np.frombuffer(_read(fd, dtypes.SLOT.itemsize * layout.SLOTS, g.slots_off),
                          dtypes.SLOT)
    lives = [locks.held(fd, locks.life(slot)) for slot in range(layout.SLOTS)]
    dead = sum(bool(used) and not lives[slot] for slot, used in enumerate(slots["used"]))
    return Glance(free, sum(lives), dead)
