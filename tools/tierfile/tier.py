# SPDX-License-Identifier: Apache-2.0
"""The files that are one tier, in their order, and what their superblocks say."""
from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from ..inspector import locks
from . import superblock
from .reader import File, Reader

OWNER_BYTE = 1 << 62


class Unusable(Exception):
    """`what`, of the file `path`; kind is one of `superblock`'s, or "set"."""

    def __init__(self, path: str, kind: str, what: str) -> None:
        super().__init__(what)
        self.path, self.kind, self.what = path, kind, what


@dataclass
class Part:
    file: File
    copies: list[superblock.Copy]
    block: superblock.Superblock


class Tier:
    """Takes the files over, and closes them."""

    def __init__(self, files: list[File]) -> None:
        self.reader = Reader(files)
        try:
            self.parts = sorted((_part(file) for file in files), key=lambda p: p.block.file)
            self.block = self.parts[0].block
            self.shape = self.block.shape
            _belong(self.parts)
        except BaseException:
            self.reader.close()
            raise
        self.reader.files = [part.file for part in self.parts]

    def live(self) -> bool:
        """Does any process have it open as its tier?"""
        return any(locks.held(part.file.fd, OWNER_BYTE) for part in self.parts)

    def __enter__(self) -> Tier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        self.reader.close()


def _part(file: File) -> Part:
    copies, found = superblock.read(file.head)
    if found is not None:
        return Part(file, copies, found)
    states = {copy.state for copy in copies}
    for kind, what in ((superblock.OTHER_VERSION, ""),
                       (superblock.DAMAGED, "neither copy of its superblock is whole"),
                       (superblock.FOREIGN, "no tier file"),
                       (superblock.EMPTY, "an empty file, no tier file")):
        if kind in states:
            why = ", ".join(c.why for c in copies if c.state == kind and c.why)
            raise Unusable(file.path, kind, f"{what} ({why})" if what and why else what or why)
    raise AssertionError(states)


def _belong(parts: list[Part]) -> None:
    first = parts[0].block
    for number, part in enumerate(parts):
        block, path = part.block, part.file.path
        mine = f"file {block.file + 1} of {block.shape.files}"
        if (block.set, block.shape) != (first.set, first.shape):
            raise Unusable(path, "set", f"{mine} of another set than {parts[0].file.path}")
        if block.file != number or block.shape.files != len(parts):
            raise Unusable(path, "set", f"{mine} of a tier, and {len(parts)} were named")
