# SPDX-License-Identifier: Apache-2.0
"""The file systems an arena may lie on, each with objects that are gone afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .locks import LIMIT

HUGE = 2 << 20


@dataclass
class Mount:
    kind: str
    folder: Path
    page: int

    @contextlib.contextmanager
    def object(self, size: int) -> Iterator[Path]:
        """A new file of `size` bytes with all its pages, gone afterwards."""
        path = self.folder / f"kvshm-kernel-test.{os.getpid()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            size = -(-size // self.page) * self.page
            os.ftruncate(fd, size)
            os.posix_fallocate(fd, 0, size)
            yield path
        finally:
            os.close(fd)
            os.unlink(path)


@contextlib.contextmanager
def private_mount(kind: str, options: str) -> Iterator[Path]:
    """A file system that only a keeper process's mount namespace knows."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    with tempfile.TemporaryDirectory(prefix="kvshm-mount-") as folder:
        mount = f"mount -t {kind} -o {options} none {folder} && echo ready && exec sleep 300"
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount]
        keeper = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert keeper.stdout and keeper.stderr
            if not keeper.stdout.readline():
                pytest.skip(f"{kind} {options}: {keeper.stderr.read().decode().strip()}")
            yield Path(f"/proc/{keeper.pid}/root{folder}")
        finally:
            keeper.kill()
            keeper.communicate(timeout=LIMIT)


@contextlib.contextmanager
def huge_page_pool(pages: int) -> Iterator[None]:
    """That many free huge pages, for a while."""
    pool = Path("/proc/sys/vm/nr_hugepages")
    if os.geteuid() or not pool.exists():
        pytest.skip("a hugetlb pool needs root")
    before = int(pool.read_text())  # relative, as another run may be doing the same
    pool.write_text(str(before + pages))
    try:
        if int(pool.read_text()) < before + pages:
            pytest.skip("not enough memory in one piece for a hugetlb pool")
        yield
    finally:
        pool.write_text(str(max(0, int(pool.read_text()) - pages)))
