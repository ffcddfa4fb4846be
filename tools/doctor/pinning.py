# SPDX-License-Identifier: Apache-2.0
"""Whether arena pages can be locked into memory, by locking some."""

from __future__ import annotations

from . import libc
from .probe import Options, Probe, size
from .proc import mapping_kb
from .shm import require_room, scratch

LENGTH = 16 << 20


def pinning(options: Options) -> Probe:
    try:
        with scratch(options.arenas, LENGTH) as fd:
            require_room(fd, LENGTH)
            at = libc.map_file(fd, LENGTH, libc.PROT_READ | libc.PROT_WRITE, libc.MAP_SHARED)
            try:
                return _lock(at)
            finally:
                libc.unmap(at, LENGTH)
    except OSError as e:
        return Probe("pinning", "skip", f"{options.arenas}: {e.strerror}")


def _lock(at: int) -> Probe:
    costs = "the arena works unpinned: its pages may be swapped, and cudaHostRegister is on its own"
    fix = "ulimit -l unlimited, or docker run --ulimit memlock=-1 (or --cap-add IPC_LOCK)"
    try:
        libc.lock_memory(at, LENGTH)
    except OSError as e:
        return Probe("pinning", "warn", f"mlock of {size(LENGTH)}: {e.strerror}", costs, fix)
    locked = (mapping_kb(at, "Locked") or 0) * 1024
    if locked < LENGTH:
        found = f"mlock succeeded, smaps shows {size(locked)} of {size(LENGTH)}"
        return Probe("pinning", "warn", found, costs, fix)
    return Probe("pinning", "ok", f"mlock of {size(LENGTH)} works, seen in smaps")
