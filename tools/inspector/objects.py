# SPDX-License-Identifier: Apache-2.0
"""The objects named kvshm.NAME: finding them, opening them to read, and telling what they are."""
from __future__ import annotations

import errno
import os
import stat
import struct
from typing import NamedTuple

from . import layout, locks

SHM = "/dev/shm"
PREFIX = "kvshm."
_HEAD = struct.Struct("<QIIQ")  # magic, layout version, bytes of the superblock, layout hash
_DEAD_AT, _GEOMETRY_AT = 64, 320

# What an object turns out to be. Only GOOD can be read any further.
GOOD, REMOVED, UNFINISHED, OTHER_LAYOUT, DAMAGED, FOREIGN, DENIED = (
    "arena", "removed", "unfinished", "other layout", "damaged", "foreign", "no permission")


class Verdict(NamedTuple):
    """`why` says it in words; `version` is that of the layout, 0 where there is none to read."""

    kind: str
    why: str = ""
    version: int = 0
    geometry: layout.Geometry | None = None


def names(folder: str | None = None) -> list[str]:
    """The NAME of every object kvshm.NAME in this directory, sorted."""
    found = []
    with os.scandir(folder or SHM) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and not entry.is_dir(follow_symlinks=False):
                found.append(entry.name[len(PREFIX):])
    return sorted(found)


def path_of(name: str, folder: str | None = None) -> str:
    return os.path.join(folder or SHM, PREFIX + name)


def open_read_only(name: str, folder: str | None = None) -> int:
    """A descriptor that cannot write. FileNotFoundError, PermissionError, or another OSError."""
    path = path_of(name, folder)
    if folder is None:
        # Through POSIX's own door: the name must be one that any POSIX program can open.
        import posix_ipc

        try:
            return int(posix_ipc.SharedMemory("/" + PREFIX + name, read_only=True).fd)
        except posix_ipc.ExistentialError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        except posix_ipc.PermissionsError:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path) from None
        except (posix_ipc.Error, ValueError) as e:
            raise OSError(errno.EINVAL, str(e), path) from None
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def look_up(name: str, folder: str | None = None) -> tuple[int | None, Verdict]:
    """Open and judge. The descriptor is the caller's; None where it may not, or must not, be
    opened. FileNotFoundError if there is nothing of this name."""
    status = os.stat(path_of(name, folder), follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
        return None, Verdict(FOREIGN, "not a regular file")
    try:
        fd = open_read_only(name, folder)
    except PermissionError:
        return None, Verdict(DENIED, f"belongs to uid {status.st_uid}")
    try:
        return fd, judge(fd)
    except BaseException:
        os.close(fd)
        raise


def still_there(fd: int, name: str, folder: str | None = None) -> bool:
    """Does the name still lead to this object?"""
    try:
        there = os.stat(path_of(name, folder), follow_symlinks=False)
    except OSError:
        return False
    here = os.fstat(fd)
    return (here.st_ino, here.st_dev) == (there.st_ino, there.st_dev)


def mount_page(fd: int) -> int:
    """Bytes of the pages that this file's file system hands out: more than 4096 on hugetlbfs."""
    made_of, block = os.fstat(fd).st_dev, os.fstatvfs(fd).f_bsize
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for line in mounts:
            fields, _, tail = line.partition(" - ")
            major, _, minor = fields.split()[2].partition(":")
            if os.makedev(int(major), int(minor)) == made_of:
                return block if tail.startswith("hugetlbfs ") else layout.PAGE
    # A mount of another namespace, reached through /proc: only hugetlbfs has such blocks in memory.
    return block if block >= layout.HUGE_PAGE else layout.PAGE


def judge(fd: int) -> Verdict:
    """What lies behind this descriptor. Reads and maps nothing beyond the superblock."""
    status = os.fstat(fd)
    # pread, not a mapping: reading a hole through a mapping would fill it with a page.
    head = os.pread(fd, layout.SUPERBLOCK, 0)
    if not head or (len(head) == layout.SUPERBLOCK and not any(head[:8])):
        making = locks.held(fd, locks.CREATION)
        return Verdict(UNFINISHED,
                       "being made" if making else "its creator died before it was ready")
    if len(head) < layout.SUPERBLOCK:
        return Verdict(FOREIGN, f"{len(head)} bytes are no arena")
    magic, version, size, mark = _HEAD.unpack_from(head)
    ours = (version, size, mark) == (layout.LAYOUT, layout.SUPERBLOCK, layout.layout_hash())
    if magic != layout.MAGIC:
        if ours:
            return Verdict(DAMAGED, f"its magic is {magic:016x}", version)
        return Verdict(FOREIGN, "no kvshm arena")
    (dead,) = struct.unpack_from("<I", head, _DEAD_AT)
    if not ours:
        return Verdict(OTHER_LAYOUT, f"layout {version} (hash {mark:016x}), this tool reads "
                       f"{layout.LAYOUT} ({layout.layout_hash():016x})", version)
    if dead:
        return Verdict(REMOVED, "marked dead", version)
    said = layout.Geometry._make(
        struct.unpack_from(f"<{len(layout.Geometry._fields)}Q", head, _GEOMETRY_AT))
    known = layout.geometry(said.block_bytes, said.blocks, mount_page(fd), said.bytes)
    if known != said:
        return Verdict(DAMAGED, "its geometry does not add up", version)
    if status.st_size < said.bytes:
        return Verdict(DAMAGED, f"cut off: {status.st_size} of {said.bytes} bytes", version)
    return Verdict(GOOD, "", version, said)
