# SPDX-License-Identifier: Apache-2.0
"""The image of a tier's slots in shared memory: an arena whose blocks are the descriptors."""
from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..inspector.view import Array, View, is_ready, state_of
from . import layout

SUFFIX = "-g3"


def name_of(arena: str) -> str:
    return arena if arena.endswith(SUFFIX) else arena + SUFFIX


class Image:
    """READY blocks of an image and their descriptors, as they were when they were read."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.ready: Array
        self.read_again()

    def wrong(self, slots: int) -> str:
        """Why it is no image of so many slots; "" if it can be."""
        g = self.view.geometry
        if g.block_bytes != layout.RECORD:
            return f"its blocks have {g.block_bytes} bytes, a descriptor {layout.RECORD}"
        return "" if g.blocks == slots else f"it has {g.blocks} slots, the file {slots}"

    @property
    def owner(self) -> str:
        return bytes(self.view.superblock["uuid"]).hex()

    def read_again(self) -> None:
        # The words before and after: a block that was READY in the same life in both had its bytes.
        g = self.view.geometry
        before = self.view.words()
        self._data = _read(self.view.fd, g.data_off, g.blocks * g.block_bytes)
        self._keys = np.ascontiguousarray(self.view.hot["key"])
        after = self.view.words()
        self.ready = is_ready(state_of(before)) & is_ready(state_of(after)) & (
            before >> np.uint64(53) == after >> np.uint64(53))

    def record(self, slot: int) -> memoryview:
        return self._data[slot * layout.RECORD:(slot + 1) * layout.RECORD]

    def same_key(self, slot: int) -> bool:
        """The block's key is that of its descriptor."""
        r: Any = np.frombuffer(self.record(slot), layout.RECORD_TYPE, 1)[0]
        return bool((r["key"] == self._keys[slot]).all())


def _read(fd: int, offset: int, length: int) -> memoryview:
    made = bytearray(length)
    view, done = memoryview(made), 0
    while done < length and (n := os.preadv(fd, [view[done:]], offset + done)):
        done += n
    return view
