# SPDX-License-Identifier: Apache-2.0
"""Processes in C that hold locks and rings, and are really killed."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from .locks import LIMIT

NATIVE = Path(__file__).parent / "native"
NAMES = ("holder", "asker", "ringer", "blocker")


class Actor:
    """One process of ours. `kill` is SIGKILL, and returns when the kernel has reaped it."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.pid = self.process.pid
        self.child: int | None = None
        self._text = b""

    def line(self, limit: float = LIMIT) -> list[str]:
        assert self.process.stdout
        fd, deadline = self.process.stdout.fileno(), time.monotonic() + limit
        while b"\n" not in self._text:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([fd], [], [], left)[0], "the actor says nothing"
            got = os.read(fd, 4096)
            assert got, f"the actor ended with {self.process.wait(LIMIT)}"
            self._text += got
        line, self._text = self._text.split(b"\n", 1)
        words = line.decode().split()
        assert words[0] != "error", f"{self.process.args}: {' '.join(words)}"
        return words

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT)

    def kill_child(self) -> None:
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGKILL)
            self.child = None

    def end(self) -> None:
        self.kill_child()
        self.kill()
        if self.process.stdout:
            self.process.stdout.close()


def build(folder: Path) -> None:
    """Compiles the actors; without liburing all but the one that needs it."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if not compiler:
        pytest.skip("no C compiler")
    for name in NAMES:
        libraries = ["-l:liburing.a"] if name == "ringer" else []
        if libraries and not has_liburing(compiler):
            continue
        subprocess.run(
            [compiler, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror",
             "-D_FILE_OFFSET_BITS=64", str(NATIVE / f"{name}.c"), str(NATIVE / "lock.c"),
             *libraries, "-pthread", "-o", str(folder / name)],
            check=True, timeout=60)


def has_liburing(compiler: str) -> bool:
    source = "#include <liburing.h>\nint main(void) { return 0; }"
    command = [compiler, "-x", "c", "-", "-l:liburing.a", "-o", os.devnull]
    done = subprocess.run(command, input=source.encode(), capture_output=True, timeout=60)
    return done.returncode == 0
