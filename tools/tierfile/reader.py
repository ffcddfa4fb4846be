# SPDX-License-Identifier: Apache-2.0
"""The files of a tier, opened to read: O_DIRECT where it goes, by an io_uring where that goes.

`why` says what did not go. Nothing is written, no lock is taken.
"""
from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

from . import layout

DEPTH = 8
LIMIT = 60.0  # seconds that one batch of reads may take


class NoTierFile(Exception):
    """A directory, a pipe: nothing that can be one."""


class File:
    def __init__(self, path: str) -> None:
        self.path, self.why = path, ""
        self.direct = True
        try:
            self.fd = os.open(path, _FLAGS | os.O_DIRECT)
        except OSError as e:
            if e.errno != errno.EINVAL:
                raise
            self.fd = os.open(path, _FLAGS)
            self._buffered("open refuses O_DIRECT")
        try:
            kind = os.fstat(self.fd).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISBLK(kind)):
                raise NoTierFile(path)
            self.bytes = os.lseek(self.fd, 0, os.SEEK_END)
            self.head = self._first_pages()
        except BaseException:
            os.close(self.fd)
            raise

    def _first_pages(self) -> bytes:
        with mmap.mmap(-1, layout.HEAD) as pages:
            try:
                n = os.preadv(self.fd, [pages], 0)
            except OSError as e:
                if e.errno != errno.EINVAL or not self.direct:
                    raise
                self.go_buffered("reads refuse O_DIRECT")
                n = os.preadv(self.fd, [pages], 0)
            return pages[:n]

    def go_buffered(self, why: str) -> None:
        fd = os.open(self.path, _FLAGS)
        os.close(self.fd)
        self.fd = fd
        self._buffered(why)

    def _buffered(self, why: str) -> None:
        self.direct, self.why = False, f"buffered: {why}"

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


# A pipe must not make open wait for its writer.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK


class Reader:
    """Reads of many pieces at a time; for one thread."""

    def __init__(self, files: list[File]) -> None:
        self.files = files
        self.engine, self.why = "pread", ""
        self._ring: Any = None
        try:
            from kvshm.uring import Ring

            self._ring = Ring(2 * DEPTH)
            self.engine = "io_uring"
        except ImportError as e:
            self.why = f"plain reads: {e}"
        except OSError as e:
            self.why = f"plain reads: {e.strerror or e}"

    def read(self, file: int, places: Iterable[tuple[int, memoryview]]) -> list[int | OSError]:
        """Fills each buffer from its offset: bytes, fewer only at the file's end, or its error.
        TimeoutError: the disk hangs. Buffers begin on a page, and offsets are multiples of one."""
        todo = list(places)
        fd = self.files[file].fd
        if self._ring is not None:
            try:
                return list(self._ring.read_many(fd, todo, depth=DEPTH, timeout=LIMIT))
            except TimeoutError:
                self.close()
                raise
            except OSError:
                pass  # some of it: each by itself says which
        return [_read(fd, offset, buffer) for offset, buffer in todo]

    def close(self) -> None:
        with suppress(OSError):  # a ring that does not drain is given up
            if self._ring is not None:
                self._ring.close(1.0)
        self._ring = None
        for file in self.files:
            file.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        self.close()


def _read(fd: int, offset: int, buffer: memoryview) -> int | OSError:
    done = 0
    try:
        while done < len(buffer):
            n = os.preadv(fd, [buffer[done:]], offset + done)
            done += n
            if not n or done % layout.PAGE:  # the file's end
                break
    except OSError as e:
        return e
    return done
