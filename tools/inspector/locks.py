# SPDX-License-Identifier: Apache-2.0
"""Who lives: asks the kernel about the lock bytes of an arena, and takes none of them."""
from __future__ import annotations

import fcntl
import os
import struct

_BASE = 1 << 62
CREATION = _BASE + 128
MOVER = _BASE + 130  # the post
# struct flock of a 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


def life(slot: int) -> int:
    return _BASE + slot


def device(slot: int) -> int:
    return _BASE + 64 + slot


def held(fd: int, byte: int) -> bool:
    """Does anybody hold a lock on this byte? Asking about a write lock needs no write access."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer: bytes = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
