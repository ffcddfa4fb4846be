# SPDX-License-Identifier: Apache-2.0
"""Arenas on the shm mount, seen without the library: by their POSIX names, read-only.

For tools that look at an arena from outside, also at one that the library cannot open. Nothing here
takes a lock or a slot.
"""
from __future__ import annotations

import mmap
import os

import posix_ipc

from kvshm.errors import ArenaNotFound, InvalidArgument, LayoutMismatch, PermissionDenied

PREFIX = "kvshm."
MOUNT = "/dev/shm"


def names() -> list[str]:
    """Names of the arena objects on the shm mount, sorted; whether they are sound or not."""
    try:
        entries = os.listdir(MOUNT)
    except FileNotFoundError:
        return []
    return sorted(entry[len(PREFIX):] for entry in entries if entry.startswith(PREFIX))


def open_readonly(name: str) -> mmap.mmap:
    """Map the whole object of an arena, read-only.

    Raises ArenaNotFound, PermissionDenied, and LayoutMismatch for an object without content. Other
    processes go on writing: read a field once.
    """
    if not name or "/" in name:
        raise InvalidArgument(f"not an arena name: {name!r}")
    try:
        shm = posix_ipc.SharedMemory(f"/{PREFIX}{name}", read_only=True)
    except posix_ipc.ExistentialError:
        raise ArenaNotFound(f"there is no arena {name!r} on {MOUNT}") from None
    except posix_ipc.PermissionsError:
        raise PermissionDenied(f"arena {name!r} belongs to another user") from None
    try:
        if shm.size == 0:
            raise LayoutMismatch(f"arena {name!r} is empty: it is being made, or its creator died")
        return mmap.mmap(shm.fd, shm.size, prot=mmap.PROT_READ)
    finally:
        shm.close_fd()
