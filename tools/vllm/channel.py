# SPDX-License-Identifier: Apache-2.0
"""A driver's process: orders to it, its answers, its end. It never outlives close()."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from .group import empties, kill_group
from .environment import READY
from .overlay import overlay

LOG_TAIL = 40  # lines


class EngineError(RuntimeError):
    """The engine refused an order, broke it off, or is gone."""


class Channel:
    """order() from any thread; the driver does them one by one. on_event is called in a thread of
    ours."""

    def __init__(self, python: Path, label: str, env: Mapping[str, str], path: Sequence[Path],
                 on_event: Callable[[dict[str, Any]], None]) -> None:
        self.label = label
        self._on_event = on_event
        self._numbers = itertools.count()
        self._pending: dict[int, Future[Any]] = {}
        self._ended: EngineError | None = None
        self._lock = threading.Lock()
        self._ranks: set[str] = set()
        self._folder = Path(tempfile.mkdtemp(prefix="kvshm-vllm-"))
        try:
            self._process = self._spawn(python, env, path)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._reader = threading.Thread(target=self._hear, daemon=True, name=f"{label}-hear")
        self._reader.start()

    def _spawn(self, python: Path, more: Mapping[str, str],
               path: Sequence[Path]) -> subprocess.Popen[bytes]:
        path = [overlay(python, self._folder / "python"), *path]
        env = {name: value for name, value in os.environ.items()
               if not name.startswith("PYTHON") and name != READY}
        env |= {**more, "PYTHONPATH": os.pathsep.join(map(str, path)), "TMPDIR": str(self._folder)}
        with open(self.log_path, "wb") as log:
            return subprocess.Popen(
                [str(python), "-X", "faulthandler", "-m", f"{__package__}.driver"], env=env,
                cwd=self._folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                start_new_session=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def idle(self) -> bool:
        """Alive, with no order to do."""
        return self._process.poll() is None and not self._pending

    def order(self, op: str, **fields: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._ended is not None:
                future.set_exception(self._ended)
                return future
            number = next(self._numbers)
            self._pending[number] = future
            assert self._process.stdin is not None
            try:
                line = json.dumps({"id": number, "op": op, **fields}) + "\n"
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # the reader fails all that is pending
        return future

    def result(self, future: Future[Any], what: str, limit: float) -> Any:
        try:
            return future.result(limit)
        except TimeoutError:
            raise EngineError(f"{self.label}: no answer to {what} within {limit:g} s\n"
                              f"{self._last_words()}") from None

    @property
    def log_path(self) -> Path:
        return self._folder / "log"

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def stop(self, limit: float) -> None:
        """Asks it to stop, and waits for the end of all that it has started."""
        self._note_ranks()
        try:
            self.result(self.order("stop"), "stop", limit)
            self._process.wait(limit)
            empties(self.pid, limit)
        except (EngineError, subprocess.TimeoutExpired):
            pass  # close() kills

    def _note_ranks(self) -> None:
        """vLLM's tensor-parallel ranks leave shared memory, named after a file in their temporary
        folder, which goes when they end well."""
        self._ranks.update(made.name for made in self._folder.glob("vllm_dist_*"))

    def kill(self) -> None:
        kill_group(self.pid)
        self._process.wait(30)
        self._reader.join(10)

    def close(self) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except BrokenPipeError:
                pass
        self._note_ranks()
        for name in self._ranks:
            for left in Path("/dev/shm").glob(f"{name}*"):
                left.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except json.JSONDecodeError:
                break  # the last line of a killed process
            if "event" in message:
                self._on_event(message)
                continue
            with self._lock:
                future = self._pending.pop(message["id"])
            if "error" in message:
                future.set_exception(EngineError(
                    f"{self.label}: {message['error']}\n{message['trace']}{self._last_words()}"))
            else:
                future.set_result(message["result"])
        self._fail_all()

    def _fail_all(self) -> None:
        code = self._process.wait()  # stdout is closed: it has ended, or is about to
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        error = EngineError(f"{self.label} (pid {self.pid}) {how}\n{self._last_words()}")
        with self._lock:
            self._ended = error
            pending, self._pending = list(self._pending.values()), {}
        for future in pending:
            future.set_exception(error)

    def _last_words(self) -> str:
        try:
            return "\n".join(self.log().splitlines()[-LOG_TAIL:])
        except OSError:
            return ""
