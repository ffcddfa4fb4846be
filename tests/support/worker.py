# SPDX-License-Identifier: Apache-2.0
"""A second Python process that a test talks to, line by line, and may kill at any moment.

The code that the worker runs finds two functions: ``say(value)`` sends a value to the test and
``hear()`` waits for one from it. Values are anything that JSON can carry.
"""
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from typing import Any

PRELUDE = """\
import json, os, sys
_pipe, sys.stdout = sys.stdout, sys.stderr    # a stray print must not break the protocol
def say(value):
    print(json.dumps(value), file=_pipe, flush=True)
def hear():
    line = sys.stdin.readline()
    if not line:
        os._exit(0)    # the test is gone
    return json.loads(line)
"""


class WorkerError(AssertionError):
    """The worker ended, or did not answer in time; carries what it wrote to stderr."""


class Worker:
    """A running worker. ``pid`` is its process id; every wait has a limit in seconds.

    under: a command that starts it, such as ``["unshare", "--mount"]``.
    """

    def __init__(self, code: str, *args: object, env: dict[str, str] | None = None,
                 under: Sequence[str] = ()) -> None:
        # stderr goes to a file: nobody reads along, so a pipe could fill up and block the worker.
        self._stderr = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")
        self._buffer = b""
        self.process: Any = self._start(textwrap.dedent(code), [*map(str, args)], env or {},
                                        [*under])
        self.pid = self.process.pid

    def _start(self, code: str, args: list[str], env: dict[str, str], under: list[str]) -> Any:
        return subprocess.Popen(
            [*under, sys.executable, "-u", "-c", PRELUDE + code, *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
            env={**os.environ, **env})

    def say(self, value: Any) -> None:
        """Send a value to the worker's ``hear()``."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(value).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(self._state("cannot be spoken to")) from None

    def hear(self, timeout: float = 30.0) -> Any:
        """The next value that the worker says."""
        assert self.process.stdout is not None
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self.process.stdout], [], [],
                                        max(0.0, end - time.monotonic()))
            if not ready:
                raise WorkerError(self._state(f"said nothing within {timeout} s"))
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                self.process.wait(10)
                raise WorkerError(self._state("ended without an answer"))
            self._buffer += chunk
            if b"\n" not in self._buffer and time.monotonic() >= end:
                raise WorkerError(self._state(f"finished no line within {timeout} s"))
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def ask(self, value: Any, timeout: float = 30.0) -> Any:
        """Say one thing and hear the answer."""
        self.say(value)
        return self.hear(timeout)

    def kill(self, signum: int = signal.SIGKILL) -> None:
        """End the worker by a signal, and wait until the kernel has cleaned up after it."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
        self.process.wait(30)

    def stop(self) -> None:
        """SIGSTOP: alive, and silent until ``resume()``."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def wait(self, timeout: float = 30.0) -> int:
        """Until the worker has ended by itself: its exit status."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise WorkerError(self._state(f"did not end within {timeout} s")) from None

    def close(self) -> None:
        """Kill it if it still runs, and give back the pipes."""
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        self._stderr.close()

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read()

    def _state(self, what: str) -> str:
        status = self.process.poll()
        ended = "still running" if status is None else f"exit status {status}"
        return f"worker {self.pid} {what} ({ended})\n{self.stderr()}"
