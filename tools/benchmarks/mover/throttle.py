# SPDX-License-Identifier: Apache-2.0
"""A control group in which the disk of a file is slow, for processes that are started in it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType

GROUPS = Path("/sys/fs/cgroup")
LIMIT = 10.0  # seconds, until the kernel has the group empty


class Refused(Exception):
    """No throttle can be had here; who or what refuses it."""


class Throttle:
    """Bytes a second, read and written, by the kernel (blkio.throttle or io.max)."""

    def __init__(self, path: Path, name: str = "") -> None:
        """path: a file, or a folder of files, on the disk that is meant. name: where one process
        has several."""
        self._disk = disk_of(path)
        name = f"kvshm-bench.{os.getpid()}{name}"
        self._old = (GROUPS / "blkio").is_dir()
        self._group = GROUPS / "blkio" / name if self._old else GROUPS / name
        try:
            self._group.mkdir(exist_ok=True)
            self.set()
        except OSError as error:
            self._remove()
            raise Refused(f"a control group for the disk: {error.strerror}") from None

    def set(self, read: float = 0, write: float = 0) -> None:
        """0: as fast as it is."""
        if self._old:
            for way, limit in (("read", read), ("write", write)):
                knob = self._group / f"blkio.throttle.{way}_bps_device"
                knob.write_text(f"{self._disk} {limit:.0f}")
            return
        limits = " ".join(f"{way}={limit:.0f}" if limit else f"{way}=max"
                          for way, limit in (("rbps", read), ("wbps", write)))
        (self._group / "io.max").write_text(f"{self._disk} {limits}")

    @property
    def members(self) -> Path:
        """A process that writes its id here is inside."""
        return self._group / "cgroup.procs"

    def command(self, command: list[str]) -> list[str]:
        """The same, inside."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.members), *command]

    def _remove(self) -> None:
        end = time.monotonic() + LIMIT
        while self._group.is_dir():
            try:
                self._group.rmdir()
            except OSError:
                if time.monotonic() > end:
                    return  # somebody is still in it; it goes with a reboot
                time.sleep(0.01)

    def __enter__(self) -> Throttle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._remove()


def disk_of(path: Path) -> str:
    """MAJOR:MINOR of the whole disk: throttles know no partitions."""
    number = path.stat().st_dev
    node = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not node.exists():
        raise Refused(f"{path} lies on no block device")
    node = node.resolve()
    if (node / "partition").exists():
        node = node.parent
    return (node / "dev").read_text().strip()
