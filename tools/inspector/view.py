# SPDX-License-Identifier: Apache-2.0
"""A good arena's metadata, mapped to read: its sections as numpy arrays, without a copy.

The arrays are live. Whoever needs one value twice copies it first (`words()`), since other
processes go on working. The blocks' bytes are never mapped.
"""
from __future__ import annotations

import mmap
import os
from types import TracebackType
from typing import Any

import numpy as np

from . import dtypes, layout, locks, objects

Array = np.ndarray[Any, np.dtype[Any]]


class View:
    """Takes the descriptor over, and closes it. `verdict` is that of `objects.judge`: GOOD."""

    def __init__(self, fd: int, name: str, folder: str | None, verdict: objects.Verdict) -> None:
        assert verdict.geometry is not None
        self.fd, self.name, self.folder = fd, name, folder
        self.geometry = g = verdict.geometry
        self.page = objects.mount_page(fd)
        length = -(-g.data_off // self.page) * self.page
        # The constructor makes a duplicate of the descriptor, on the same description.
        self._map = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ)
        buffer = np.frombuffer(self._map, np.uint8)

        def section(offset: int, kind: Any, count: int) -> Array:
            dtype = np.dtype(kind)
            return buffer[offset:offset + dtype.itemsize * count].view(dtype)

        self.superblock = section(0, dtypes.SUPERBLOCK, 1)[0]
        self.slots = section(g.slots_off, dtypes.SLOT, layout.SLOTS)
        self.regions = section(g.regions_off, "<u8", layout.SLOTS * g.region_words).reshape(
            layout.SLOTS, g.region_words)
        self.hot = section(g.hot_off, dtypes.HOT, g.blocks)
        self.cold = section(g.cold_off, dtypes.COLD, g.blocks)
        self.index = section(g.index_off, "<u8", g.buckets * layout.WAYS)
        self.free_map = section(g.free_off, "<u8", (g.blocks + 63) // 64)
        self.summary = section(g.summary_off, "<u8", g.region_words)
        self.tenants = section(g.tenants_off, dtypes.TENANT, layout.TENANTS)
        self.ghosts = section(g.ghost_off, dtypes.GHOST, layout.ghost_places(g.blocks))
        self.uses = section(g.uses_off, dtypes.USES, layout.uses_lines(g.blocks))
        self.shadow = section(g.shadow_off, dtypes.SHADOW, 1)[0]
        self.mover = section(g.queues_off, dtypes.MOVER, 1)[0]
        self.lanes = section(g.queues_off + layout.MOVER, dtypes.LANE, layout.LANES)

    def words(self) -> Array:
        """A copy of all block words, each whole; one after the other, not at one moment."""
        return np.ascontiguousarray(self.hot["word"])

    def live_slots(self) -> list[bool]:
        return [locks.held(self.fd, locks.life(slot)) for slot in range(layout.SLOTS)]

    @property
    def path(self) -> str:
        return objects.path_of(self.name, self.folder)

    def gone(self) -> bool:
        """Removed or replaced since it was opened."""
        return bool(self.superblock["dead"]) or not objects.still_there(
            self.fd, self.name, self.folder)

    def close(self) -> None:
        # The arrays may outlive this object; the map goes with the last of them.
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> View:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def state_of(words: Array) -> Array:
    return (words >> np.uint64(layout.STATE_SHIFT)) & np.uint64(7)


def holders_of(words: Array) -> Array:
    return words & np.uint64(layout.HOLDERS)


def is_ready(states: Array) -> Array:
    return np.asarray((states == layout.READY) | (states == layout.READY_LAST))


def bits(mask: Array, count: int) -> Array:
    """The first `count` bits of an array of 64-bit words, as booleans."""
    return np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), count=count,
                         bitorder="little").astype(bool)
