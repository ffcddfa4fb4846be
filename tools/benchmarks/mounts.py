# SPDX-License-Identifier: Apache-2.0
"""Tmpfs mounts with 2 MiB and with 4 KiB pages, in a mount namespace of our own.

They are gone with us and seen by nobody else, and do not depend on how big the shm mount is.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

HUGE, SMALL = "2 MiB", "4 KiB"
PAGES = (HUGE, SMALL)

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE, MNT_DETACH = 0x4000, 0x40000, 2


@dataclass(frozen=True)
class Mounts:
    folders: dict[str, str]  # by page size; "" = the shm mount
    why_not: str = ""  # there are no huge pages


@contextmanager
def mounted() -> Iterator[Mounts]:
    """Their size is not limited here: what is put into them is. Call it before any thread is
    started: the namespace is that of this thread and of the processes that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *args: object) -> None:
        if getattr(libc, name)(*args) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def mount(folder: str, huge: str) -> str:
        os.mkdir(folder, 0o700)
        call("mount", b"kvshm-bench", folder.encode(), b"tmpfs", ctypes.c_ulong(0),
             f"huge={huge},size=95%,mode=0700".encode())
        return folder

    with tempfile.TemporaryDirectory(prefix="kvshm-bench-") as top:
        huge, small = os.path.join(top, "huge"), os.path.join(top, "small")
        try:
            try:
                call("unshare", CLONE_NEWNS)
                call("mount", b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
                found = Mounts({HUGE: mount(huge, "advise"), SMALL: mount(small, "never")})
            except OSError as e:
                found = Mounts({SMALL: ""},
                               f"no tmpfs with 2 MiB pages may be mounted here ({e.strerror})")
            yield found
        finally:
            for folder in (huge, small):
                libc.umount2(folder.encode(), MNT_DETACH)
