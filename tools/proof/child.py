# SPDX-License-Identifier: Apache-2.0
"""A program that says one JSON document on stdout and its progress on stderr."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any


class StageError(Exception):
    """A program could not be run, or gave no answer."""


def _read_lines(stream: IO[bytes], tail: deque[str], say: Callable[[str], None]) -> None:
    pending = b""
    while chunk := os.read(stream.fileno(), 65536):
        # \\r ends the lines of programs that draw a bar
        *lines, pending = re.split(rb"[\r\n]", pending + chunk)
        for raw in lines:
            if text := raw.decode(errors="replace").strip():
                tail.append(text)
                say(text)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait(30)


def run(command: Sequence[str | Path], seconds: float, say: Callable[[str], None],
        cwd: Path | None = None) -> tuple[int, str, list[str]]:
    """Exit status, stdout and the last lines of stderr; ends the whole group at the limit."""
    tail: deque[str] = deque(maxlen=40)
    out: list[bytes] = []
    try:
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd,
                                   start_new_session=True)
    except OSError as e:
        raise StageError(f"{command[0]}: {e.strerror}") from None
    assert process.stdout is not None and process.stderr is not None
    readers = [threading.Thread(target=_read_lines, args=(process.stderr, tail, say), daemon=True),
               threading.Thread(target=lambda s: out.append(s.read()), args=(process.stdout,),
                                daemon=True)]
    for one in readers:
        one.start()
    deadline = time.monotonic() + seconds
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        raise StageError(f"{Path(command[0]).name}: not over within {seconds:.0f} s") from None
    finally:
        if process.poll() is None:
            _end(process)
        for one in readers:
            one.join(max(1.0, min(30.0, deadline - time.monotonic())))
    return process.returncode, b"".join(out).decode(errors="replace"), list(tail)


def document(command: Sequence[str | Path], seconds: float, say: Callable[[str], None],
             cwd: Path | None = None) -> dict[str, Any]:
    """The JSON that it wrote, with its exit status as `exit`; status 2 and silence are errors."""
    status, out, tail = run(command, seconds, say, cwd)
    try:
        answer = json.loads(out)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or status not in (0, 1):
        raise StageError(f"{Path(command[0]).name} ended with status {status}: "
                         + (" / ".join(tail[-3:]) or "it said nothing"))
    return {**answer, "exit": status}
