# SPDX-License-Identifier: Apache-2.0
"""Lock bytes of an arena object, asked for and taken from Python.

The tests judge by these, so that no actor judges itself.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

LIFE, DEVICE = 1 << 62, (1 << 62) + 64
FLOCK = struct.Struct("hhxxxxqqixxxx")  # struct flock with 64-bit offsets
LIMIT = 20.0  # seconds, of anything that is waited for


def byte_is_held(path: Path | str, byte: int) -> bool:
    """Through a fresh read-only description, as the arena's own probes are made."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        ask = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        answer = FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, ask))
        return bool(answer[0] != fcntl.F_UNLCK)
    finally:
        os.close(fd)


def set_byte(fd: int, kind: int, byte: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))


def seconds_until_free(path: Path | str, byte: int, limit: float = LIMIT) -> float:
    start = time.monotonic()
    while byte_is_held(path, byte):
        assert time.monotonic() - start < limit, f"byte still held after {limit} s"
        time.sleep(0.0002)
    return time.monotonic() - start
