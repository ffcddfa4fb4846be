# SPDX-License-Identifier: Apache-2.0
"""The few system calls that Python does not have, or does not have exactly so."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import signal
import struct

# PyDLL keeps the GIL: a raw-clone child must come back as the one thread there is.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_int64)
_libc.munmap.argtypes = _libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.syscall.restype = ctypes.c_long

PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
MAP_SHARED, MAP_PRIVATE, MAP_NORESERVE = 1, 2, 0x4000
MADV_DONTFORK, MADV_HUGEPAGE, MADV_POPULATE_WRITE = 10, 14, 23
MPOL_BIND = 2

_NUMBERS = {  # clone, close_range, mbind
    "x86_64": (56, 436, 237),
    "aarch64": (220, 436, 235),
}
_FLOCK = struct.Struct("hhxxxxqqixxxx")


def _checked(rc: int) -> int:
    if rc < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return rc


def _call(which: int, *args: object) -> int:
    numbers = _NUMBERS.get(platform.machine())
    if numbers is None:
        raise OSError(errno.ENOSYS, f"no system call numbers for {platform.machine()}")
    return _checked(_libc.syscall(ctypes.c_long(numbers[which]), *args))


def map_file(fd: int, length: int, protection: int, flags: int) -> int:
    """The address. Unlike Python's mmap it takes no descriptor of its own."""
    at = _libc.mmap(None, length, protection, flags, fd, 0)
    if at is None or at == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(at)


def unmap(address: int, length: int) -> None:
    _checked(_libc.munmap(address, length))


def advise(address: int, length: int, what: int) -> None:
    _checked(_libc.madvise(address, length, what))


def lock_memory(address: int, length: int) -> None:
    _checked(_libc.mlock(address, length))


def raw_clone() -> int:
    """As fork, but no library hears of it: 0 in the child."""
    zero = ctypes.c_long(0)
    return _call(0, ctypes.c_long(signal.SIGCHLD), zero, zero, zero, zero)


def close_range(first: int, last: int) -> None:
    _call(1, ctypes.c_ulong(first), ctypes.c_ulong(last), ctypes.c_ulong(0))


def bind_memory(address: int, length: int, node: int) -> None:
    mask = ctypes.c_ulong(1 << node)
    _call(2, ctypes.c_void_p(address), ctypes.c_ulong(length), ctypes.c_long(MPOL_BIND),
          ctypes.byref(mask), ctypes.c_ulong(64), ctypes.c_ulong(0))


def lock_byte(fd: int, kind: int, byte: int) -> None:
    """An open-file-description lock; BlockingIOError when another description has it."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))


def byte_is_held(fd: int, byte: int) -> bool:
    """By some other description than this one."""
    ask = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    answer = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, ask))
    return bool(answer[0] != fcntl.F_UNLCK)
