# SPDX-License-Identifier: Apache-2.0
"""The asker's side of a worker: starts it, sends requests, hears what it says, notices its end."""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from .asking import Event, Reply, WorkerError
from .settings import Settings

START_LIMIT = 120.0  # importing torch on a loaded machine takes a while


class WorkerProcess:
    _numbers = itertools.count(1)

    def __init__(self, settings: Settings, label: str, on_event: Event) -> None:
        self.label = label
        self.ready: Future[dict[str, Any]] = Future()
        self._on_event = on_event
        self._pending: dict[int, Future[Reply]] = {}
        self._ended: WorkerError | None = None
        self._lock = threading.Lock()
        self._last_words: deque[str] = deque(maxlen=20)
        command = [sys.executable, "-m", f"{__package__}.worker",
                   replace(settings, label=label).dump()]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        self._threads = [
            threading.Thread(target=target, daemon=True, name=f"{label}-{target.__name__}")
            for target in (self._hear, self._keep_last_words)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> dict[str, Any]:
        return self.ready.result(START_LIMIT)

    def ask(self, tokens: list[int], new: int, reuse: bool = True) -> Future[Reply]:
        number = next(self._numbers)
        future: Future[Reply] = Future()
        with self._lock:
            if self._ended is not None:
                future.set_exception(self._ended)
                return future
            self._pending[number] = future
        message = {"op": "generate", "id": number, "tokens": tokens, "new": new, "reuse": reuse}
        self._send(message)
        return future

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has it off the list."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(30)

    def ask_to_stop(self) -> None:
        self._send({"op": "stop"})

    def stop(self, limit: float = 30.0) -> None:
        """Ask it to end; kill it if it does not within the limit."""
        self.ask_to_stop()
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
        for thread in self._threads:
            thread.join(5)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(json.dumps(message) + "\n")
                self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it is gone: the reader fails everything that is pending

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except json.JSONDecodeError:
                break  # the last line of a killed process
            self._on_event(self, message)
            if message["event"] == "ready":
                self.ready.set_result(message)
            elif message["event"] in ("done", "error"):
                self._settle(message)
        self._fail_all()

    def _settle(self, message: dict[str, Any]) -> None:
        with self._lock:
            future = self._pending.pop(message["id"])
        if message["event"] == "error":
            future.set_exception(WorkerError(f"{self.label}: {message['error']}"))
            return
        logits = np.frombuffer(base64.b64decode(message["logits"]), np.float32)
        future.set_result(
            Reply(
                tokens=message["tokens"],
                logits=logits.reshape(len(message["tokens"]), -1),
                ttft_ms=message["ttft_ms"],
                reused=message["reused"],
                chunks=[(start, count) for start, count in message["chunks"]],
                counts=message["counts"],
            )
        )

    def _fail_all(self) -> None:
        code = self._process.wait(30)
        self._threads[1].join(5)
        words = "".join(self._last_words).strip()
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        error = WorkerError(f"{self.label} (pid {self.pid}) {ended}" + (words and f":\n{words}"))
        with self._lock:
            self._ended = error
            pending, self._pending = list(self._pending.values()), {}
        for future in pending:
            future.set_exception(error)
        if not self.ready.done():
            self.ready.set_exception(error)

    def _keep_last_words(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_words.append(line)
