# SPDX-License-Identifier: Apache-2.0
"""Whether a folder can carry a tier file: O_DIRECT, and blocks reserved beforehand."""

from __future__ import annotations

import mmap
import os

from .probe import Options, Probe, size
from .proc import mount_of
from .shm import reopen, scratch

LENGTH = 1 << 20


def direct(options: Options) -> Probe:
    folder = options.tier
    other = "put the tier file on ext4 or xfs on a local disk (--tier-dir DIR tries another)"
    try:
        mount, space = mount_of(folder), os.statvfs(folder)
        found = f"{folder}: {mount.kind}, {size(space.f_bavail * space.f_frsize)} free"
        if mount.kind in ("tmpfs", "ramfs"):
            return Probe("direct I/O", "warn", found, "a tier here is memory, not a disk", other)
        with scratch(folder, 0) as fd:
            os.posix_fallocate(fd, 0, LENGTH)
            wrong = _round_trip(fd)
    except OSError as e:
        costs = "the tier goes through the page cache, and pays twice for its memory"
        return Probe("direct I/O", "warn", f"{folder}: {e.strerror}", costs, other)
    if wrong:
        return Probe("direct I/O", "fail", f"{found}; {wrong}", "the tier would read wrong bytes",
                     other)
    return Probe("direct I/O", "ok", f"{found}, O_DIRECT and fallocate work")


def _round_trip(fd: int) -> str:
    pattern = os.urandom(mmap.PAGESIZE) * (LENGTH // mmap.PAGESIZE)
    direct_fd = reopen(fd, os.O_RDWR | os.O_DIRECT)
    try:
        with mmap.mmap(-1, LENGTH) as buffer:  # begins on a page
            buffer[:] = pattern
            if os.pwritev(direct_fd, [buffer], 0) != LENGTH:
                return "short write"
            buffer[:] = bytes(LENGTH)
            if os.preadv(direct_fd, [buffer], 0) != LENGTH:
                return "short read"
            return "" if buffer[:] == pattern else "other bytes came back"
    finally:
        os.close(direct_fd)
