# SPDX-License-Identifier: Apache-2.0
"""The mount that arenas lie on, and an object on it that nobody else can see."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .probe import Options, Probe, size
from .proc import mount_of

SMALL = 1 << 30


@contextlib.contextmanager
def scratch(folder: Path, length: int) -> Iterator[int]:
    """A file without a name, so that no kill leaves it behind. Yields its descriptor."""
    fd, name = tempfile.mkstemp(prefix="kvshm-doctor.", dir=folder)
    os.unlink(name)
    try:
        block = os.fstatvfs(fd).f_bsize  # hugetlbfs takes whole huge pages only
        os.ftruncate(fd, -(-length // block) * block)
        yield fd
    finally:
        os.close(fd)


def require_room(fd: int, length: int) -> None:
    """OSError now instead of a signal, or another error's name, when the pages are touched."""
    space = os.fstatvfs(fd)
    if space.f_blocks and space.f_bavail * space.f_frsize < length:  # no blocks: no limit
        raise OSError(errno.ENOSPC, "too little room to try")


def reopen(fd: int, flags: int = os.O_RDWR) -> int:
    """A fresh description of the same object, also of one without a name."""
    return os.open(f"/proc/self/fd/{fd}", flags | os.O_CLOEXEC)


def shm(options: Options) -> Probe:
    folder = options.arenas
    try:
        mount, space = mount_of(folder), os.statvfs(folder)
    except OSError as e:
        return Probe("shm mount", "fail", f"{folder}: {e.strerror}", "no arena can be made",
                     f"mount -t tmpfs -o size=50% none {folder}")
    total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    found = f"{folder}: {mount.kind}, {size(free)} free of {size(total)}"
    if mount.kind not in ("tmpfs", "hugetlbfs", "ramfs"):
        costs = "arena pages are written back to a disk, and locks may not be this host's"
        return Probe("shm mount", "fail", found, costs, f"mount -t tmpfs none {folder}")
    try:
        with scratch(folder, space.f_bsize) as fd:
            os.posix_fallocate(fd, 0, space.f_bsize)
    except OSError as e:
        return Probe("shm mount", "fail", f"{found}; {e.strerror}", "no arena can be made",
                     _more_room(folder, mount.kind))
    if free < SMALL:
        return Probe("shm mount", "warn", found, "arenas must fit in what is free",
                     _more_room(folder, mount.kind))
    return Probe("shm mount", "ok", found)


def _more_room(folder: Path, kind: str) -> str:
    if kind == "hugetlbfs":
        return "sysctl vm.nr_hugepages=PAGES"
    return f"mount -o remount,size=SIZE {folder}, or docker run --shm-size=SIZE"
