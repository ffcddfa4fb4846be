# SPDX-License-Identifier: Apache-2.0
"""Format 1 of a tier file in numbers. docs/format.md draws it."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

MAGIC = int.from_bytes(b"KVTIER1n", "little")
VERSION = 1
PAGE = 4096
COPIES = (0, PAGE)  # offsets of the superblock's two copies
HEAD = 2 * PAGE
SUPERBLOCK, CHECKED = 1224, 1216  # bytes of the struct, and of what its check covers
RECORD, SELF_CHECKED = 64, 56
FILES = 8
MAX_SLOTS = 0xFFFFFFF0

SUPERBLOCK_TYPE = np.dtype({
    "names": ["magic", "version", "bytes", "sequence", "set", "owner", "fingerprint",
              "block_bytes", "slot_bytes", "slots", "records_offset", "data_offset", "file",
              "files", "epoch", "codec", "owner_name", "identity", "check"],
    "formats": ["<u8", "<u4", "<u4", "<u8", "V16", "V16", "V16", "<u8", "<u8", "<u8", "<u8", "<u8",
                "<u4", "<u4", "<u4", "<u4", "S64", "S1024", "<u8"],
    "offsets": [0, 8, 12, 16, 24, 40, 56, 72, 80, 88, 96, 104, 112, 116, 120, 124, 128, 192, 1216],
    "itemsize": SUPERBLOCK})

RECORD_TYPE = np.dtype({
    "names": ["key", "check", "length", "expires", "epoch", "parent", "priority", "uses", "codec",
              "self"],
    "formats": [("<u8", 2), ("<u8", 2), "<u4", "<u4", "<u4", "<u4", "u1", "u1", "u1", "<u8"],
    "offsets": [0, 16, 32, 36, 40, 44, 48, 49, 50, 56], "itemsize": RECORD})


class Shape(NamedTuple):
    """Where everything lies in the files of one tier."""

    block_bytes: int
    slot_bytes: int
    slots: int
    records_offset: int
    data_offset: int
    files: int

    @property
    def records_bytes(self) -> int:
        return up(self.slots * RECORD, PAGE)

    def slots_in(self, file: int) -> int:
        return (self.slots - file + self.files - 1) // self.files

    def slot_offset(self, slot: int) -> int:
        """In file slot % files."""
        return self.data_offset + slot // self.files * self.slot_bytes

    def bytes_of(self, file: int) -> int:
        """What the file needs to have."""
        return self.data_offset + self.slots_in(file) * self.slot_bytes

    def wrong(self) -> str:
        """Why no tier can be like that; "" if it can."""
        if not 0 < self.files <= FILES:
            return f"{self.files} files"
        if not self.files <= self.slots <= MAX_SLOTS:
            return f"{self.slots} slots in {self.files} files"
        if not 0 < self.block_bytes <= self.slot_bytes or self.slot_bytes % PAGE:
            return f"slots of {self.slot_bytes} bytes for blocks of {self.block_bytes}"
        if self.records_offset % PAGE or self.records_offset < HEAD:
            return f"records at {self.records_offset}"
        if (self.data_offset % PAGE
                or self.data_offset < self.records_offset + self.records_bytes):
            return f"slots at {self.data_offset}, {self.slots} records at {self.records_offset}"
        if self.bytes_of(0) >= 1 << 62:
            return f"{self.slots} slots of {self.slot_bytes} bytes"
        return ""


def up(value: int, to: int) -> int:
    return -(-value // to) * to
