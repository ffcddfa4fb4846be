# SPDX-License-Identifier: Apache-2.0
"""A file to read with O_DIRECT, and a cgroup in which its disk is slow."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .locks import LIMIT

MIB = 1 << 20
BLANK = 0xEE  # what an arena is filled with; no byte of the file has this value
CGROUPS = Path("/sys/fs/cgroup")


def random_file(path: Path, mib: int) -> Path:
    """On the disk, not only in the page cache, or the first O_DIRECT read would wait for it."""
    table = bytes(b if b != BLANK else 1 for b in range(256))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(mib):
        os.write(fd, os.urandom(MIB).translate(table))
    os.fsync(fd)
    os.close(fd)
    return path


def require_direct_disk(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC))
    except OSError as e:
        pytest.skip(f"O_DIRECT on {path.parent}: {e.strerror}")
    if disk_of(path) is None:
        pytest.skip(f"{path.parent} lies on no block device")


def disk_of(path: Path) -> str | None:
    """MAJOR:MINOR of the whole disk below a file; throttles know no partitions."""
    number = path.stat().st_dev
    node = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not node.exists():
        return None
    node = node.resolve()
    if (node / "partition").exists():
        node = node.parent
    return (node / "dev").read_text().strip()


@contextlib.contextmanager
def slow_reads(path: Path, mib_per_s: int) -> Iterator[list[str]]:
    """A command prefix that runs a program where reads of this file's disk are throttled."""
    disk, limit = disk_of(path), mib_per_s * MIB
    name = f"kvshm-test.{os.getpid()}"
    if (CGROUPS / "blkio").is_dir():
        group, knob = CGROUPS / "blkio" / name, "blkio.throttle.read_bps_device"
        line = f"{disk} {limit}"
    else:
        group, knob, line = CGROUPS / name, "io.max", f"{disk} rbps={limit}"
    try:
        group.mkdir()
    except OSError as e:
        pytest.skip(f"a cgroup that throttles the disk: {e.strerror}")
    try:
        try:
            (group / knob).write_text(line)
        except OSError as e:
            pytest.skip(f"{knob}: {e.strerror}")
        yield ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs")]
    finally:
        remove(group)


def remove(group: Path) -> None:
    """With what a failed test has left in it. The kernel empties it a moment after a death."""
    deadline = time.monotonic() + LIMIT
    while True:
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
