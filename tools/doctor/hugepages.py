# SPDX-License-Identifier: Apache-2.0
"""Whether a shared mapping on the arena mount really gets huge pages: the kernel's own count."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from . import libc
from .probe import Options, Probe, size
from .proc import mapping_kb, meminfo, mount_of, text_of
from .shm import require_room, scratch

THP = Path("/sys/kernel/mm/transparent_hugepage")


def settings(_: Options) -> Probe:
    """Never a failure by itself: what counts is the next probe."""
    chosen = re.search(r"\[(\w+)\]", text_of(str(THP / "shmem_enabled")) or "")
    total, free = meminfo("HugePages_Total") or 0, meminfo("HugePages_Free") or 0
    page = meminfo("Hugepagesize") or 0
    pool = f"{free} free of {total} x {size(page)}" if total else "empty"
    found = f"shmem_enabled {chosen.group(1) if chosen else 'absent'}, hugetlb pool {pool}"
    return Probe("huge page settings", "ok", found)


def huge_pages(options: Options) -> Probe:
    folder = options.arenas
    try:
        mount = mount_of(folder)
        huge = meminfo("Hugepagesize") or 2 << 20
        got, length = _mapped_huge(folder, huge)
    except OSError as e:
        return Probe("huge pages", "skip", f"{folder}: {e.strerror}")
    if got == length:
        return Probe("huge pages", "ok", f"{folder}: {size(huge)} pages, seen in smaps")
    if got == 0:
        found = f"{folder}: {size(mmap.PAGESIZE)} pages only, though {size(huge)} were asked for"
    else:
        found = f"{folder}: {size(got)} of {size(length)} in huge pages"
    table = size((1 << 30) // mmap.PAGESIZE * 8)
    costs = f"page tables of {table} per GiB in each process, slower look-ups and registration"
    return Probe("huge pages", "warn", found, costs, _fix(folder, mount.kind))


def _mapped_huge(folder: Path, huge: int) -> tuple[int, int]:
    """Bytes in huge pages, of the bytes asked for, in a shared mapping of a new file."""
    room = 3 * huge
    with scratch(folder, room) as fd:
        require_room(fd, room)
        at = libc.map_file(fd, room, libc.PROT_READ | libc.PROT_WRITE, libc.MAP_SHARED)
        try:
            if mount_of(folder).kind != "hugetlbfs":
                libc.advise(at, room, libc.MADV_HUGEPAGE)
            # Touching would end the process with SIGBUS where the mount is full; this fails.
            libc.advise(at, room, libc.MADV_POPULATE_WRITE)
            keys = ("ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb")
            kib = sum(mapping_kb(at, key) or 0 for key in keys)
            return kib * 1024, room
        finally:
            libc.unmap(at, room)


def _fix(folder: Path, kind: str) -> str:
    if kind == "tmpfs":
        return f"mount -o remount,huge=advise {folder} (root), or a tmpfs of its own and dir="
    return "mount -t tmpfs -o huge=advise,size=SIZE none DIR, and dir=DIR"
