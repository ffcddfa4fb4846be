# SPDX-License-Identifier: Apache-2.0
"""A redis server of our own on a unix socket, for as long as it is needed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .native import BenchError, until

WHY_NOT = "no redis-server (Debian and Ubuntu: apt-get install redis-server)"


def find() -> str | None:
    return shutil.which("redis-server") or shutil.which("valkey-server")


@contextmanager
def server() -> Iterator[str]:
    """The path of its socket."""
    program = find()
    if program is None:
        raise BenchError(WHY_NOT)
    with tempfile.TemporaryDirectory(prefix="kvshm-bench-") as folder:
        path = str(Path(folder, "socket"))
        process = subprocess.Popen(
            [program, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no",
             "--dir", folder, "--daemonize", "no"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def answers() -> bool:
            if process.poll() is not None:
                raise BenchError(f"{program} ended with status {process.returncode}")
            try:
                with socket.socket(socket.AF_UNIX) as s:
                    s.settimeout(5)
                    s.connect(path)
                    s.sendall(b"PING\r\n")
                    return s.recv(16).startswith(b"+PONG")
            except OSError:
                return False

        try:
            until(answers, 20, "redis-server")
            yield path
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)
