# SPDX-License-Identifier: Apache-2.0
"""A file's superblock: two copies, of which the whole one with the higher sequence counts."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from . import layout
from .checks import check64

# What a copy turns out to be.
GOOD, EMPTY, DAMAGED, OTHER_VERSION, FOREIGN = (
    "good", "empty", "damaged", "other version", "foreign")


@dataclass
class Copy:
    """`why` says it in words. `sequence` and `version` are 0 where there is none to read."""

    state: str
    sequence: int = 0
    version: int = 0
    why: str = ""


@dataclass
class Superblock:
    sequence: int
    set: str
    owner: str
    owner_name: str
    fingerprint: str
    identity: str
    epoch: int
    codec: int
    file: int
    shape: layout.Shape


def read(head: bytes) -> tuple[list[Copy], Superblock | None]:
    """Both copies as they are, and what counts; None where no copy is good."""
    copies, best = [], None
    for at in layout.COPIES:
        copy, found = _judge(head[at:at + layout.PAGE])
        copies.append(copy)
        if found and (best is None or found.sequence > best.sequence):
            best = found
    return copies, best


def _judge(page: bytes) -> tuple[Copy, Superblock | None]:
    if not any(page):
        return Copy(EMPTY, why="" if len(page) == layout.PAGE else f"{len(page)} bytes"), None
    if len(page) < layout.SUPERBLOCK:
        return Copy(DAMAGED, why=f"{len(page)} bytes"), None
    s = np.frombuffer(page, layout.SUPERBLOCK_TYPE, 1)[0]
    sequence, version = int(s["sequence"]), int(s["version"])
    if int(s["magic"]) != layout.MAGIC:
        why = f"its magic is {int(s['magic']):016x}"
        if (version, int(s["bytes"])) == (layout.VERSION, layout.SUPERBLOCK):
            return Copy(DAMAGED, sequence, version, why), None
        return Copy(FOREIGN, why=why), None
    if version != layout.VERSION:
        return Copy(OTHER_VERSION, sequence, version,
                    f"format {version}, and this reads {layout.VERSION}"), None
    if int(s["bytes"]) != layout.SUPERBLOCK:
        return Copy(DAMAGED, sequence, version, f"it says that it has {s['bytes']} bytes"), None
    if check64(page[:layout.CHECKED]) != int(s["check"]):
        return Copy(DAMAGED, sequence, version, "its check does not match"), None
    made = _superblock(s, sequence)
    wrong = made.shape.wrong() or (
        "" if made.file < made.shape.files else f"file {made.file} of {made.shape.files}")
    if wrong:
        return Copy(DAMAGED, sequence, version, f"no tier can be like that: {wrong}"), None
    return Copy(GOOD, sequence, version), made


def _superblock(s: Any, sequence: int) -> Superblock:
    def text(name: str) -> str:
        return bytes(s[name]).decode("utf-8", "replace")

    shape = layout.Shape(*(int(s[name]) for name in layout.Shape._fields))
    return Superblock(sequence, bytes(s["set"]).hex(), bytes(s["owner"]).hex(), text("owner_name"),
                      bytes(s["fingerprint"]).hex(), text("identity"), int(s["epoch"]),
                      int(s["codec"]), int(s["file"]), shape)
