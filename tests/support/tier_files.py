# SPDX-License-Identifier: Apache-2.0
"""Writes tier files byte by byte, as docs/format.md draws them, with nothing of ours in between."""
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

PAGE = 4096


def superblock(**change: object) -> bytes:
    s: dict[str, object] = {
        "magic": b"KVTIER1n", "version": 1, "bytes": 1224, "sequence": 1, "set": b"S" * 16,
        "owner": b"O" * 16, "fingerprint": bytes(16), "block_bytes": 0, "slot_bytes": 0, "slots": 0,
        "records_offset": 8192, "data_offset": 0, "file": 0, "files": 1, "epoch": 0, "codec": 0,
        "owner_name": b"t-tier", "identity": b"{}"} | change
    body = struct.pack("<8sIIQ16s16s16sQQQQQIIII64s1024s", *s.values())
    assert len(body) == 1216
    return (body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))).ljust(PAGE, b"\0")


def record(slot: int, key: bytes, payload: bytes, *, length: int | None = None, expires: int = 0,
           epoch: int = 0, codec: int = 0, seed: int | None = None) -> bytes:
    check = xxhash.xxh3_128_intdigest(payload)
    body = key + struct.pack(
        "<QQIIIIBBB5x", check & (1 << 64) - 1, check >> 64,
        len(payload) if length is None else length, expires, epoch, 0xFFFFFFFF, 50, 1, codec)
    assert len(body) == 56
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body, slot if seed is None else seed))


@dataclass
class TierFiles:
    """A tier of `slots` slots in `files` files; each slot has a block but those of `empty`."""

    folder: Path
    block_bytes: int = 5000
    slots: int = 40
    files: int = 1
    empty: tuple[int, ...] = (3, 39)
    owner: bytes = b"O" * 16
    epoch: int = 0
    keys: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        random = np.random.default_rng(7)
        self.slot_bytes = -(-self.block_bytes // PAGE) * PAGE
        self.data_offset = 2 * PAGE + -(-self.slots * 64 // PAGE) * PAGE
        self.data_offset = -(-self.data_offset // self.slot_bytes) * self.slot_bytes
        self.paths = [self.folder / f"tier{i}" for i in range(self.files)]
        self.records = [bytes(64)] * self.slots
        for path in self.paths:
            mine = (self.slots - self.paths.index(path) + self.files - 1) // self.files
            path.write_bytes(bytes(self.data_offset + mine * self.slot_bytes))
        for i in range(self.files):
            self.put(i, PAGE, superblock(**self.block(i)))  # the first one ever: sequence 1
        for slot in range(self.slots):
            if len(self.keys) <= slot:
                self.keys.append(random.bytes(16))
            size = self.block_bytes - slot % 3  # objects' last blocks are shorter
            self.payloads.append(random.bytes(size))
            if slot not in self.empty:
                self.store(slot, self.payloads[slot])
                self.describe(slot, record(slot, self.keys[slot], self.payloads[slot],
                                           epoch=self.epoch))

    def block(self, file: int, **change: object) -> dict[str, object]:
        return {"owner": self.owner, "block_bytes": self.block_bytes, "epoch": self.epoch,
                "slot_bytes": self.slot_bytes, "slots": self.slots,
                "data_offset": self.data_offset, "file": file, "files": self.files} | change

    def put(self, file: int, offset: int, data: bytes) -> None:
        with open(self.paths[file], "r+b") as f:
            f.seek(offset)
            f.write(data)

    def get(self, file: int, offset: int, length: int) -> bytes:
        with open(self.paths[file], "rb") as f:
            f.seek(offset)
            return f.read(length)

    def place(self, slot: int) -> tuple[int, int]:
        return slot % self.files, self.data_offset + slot // self.files * self.slot_bytes

    def store(self, slot: int, payload: bytes) -> None:
        self.put(*self.place(slot), payload)

    def describe(self, slot: int, made: bytes) -> None:
        self.records[slot] = made
        self.put(0, 2 * PAGE + 64 * slot, made)

    def flip(self, file: int, offset: int, bit: int = 0) -> None:
        (byte,) = self.get(file, offset, 1)
        self.put(file, offset, bytes([byte ^ 1 << bit]))

    def flip_payload(self, slot: int, at: int, bit: int = 0) -> None:
        file, offset = self.place(slot)
        self.flip(file, offset + at, bit)

    def flip_record(self, slot: int, at: int, bit: int = 0) -> None:
        self.flip(0, 2 * PAGE + 64 * slot + at, bit)
