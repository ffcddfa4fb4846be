# SPDX-License-Identifier: Apache-2.0
"""Processes that measure: one line of JSON when ready, then one for each order."""

from __future__ import annotations

import json
import select
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

READY_SECONDS = 300.0  # 10 million blocks on a busy machine
ROUND_SECONDS = 60.0

Facts = dict[str, Any]


class BenchError(Exception):
    """A measuring process failed; its own words."""


class Role:
    """A measuring process. Ends with its input: close(), or our own end."""

    def __init__(self, command: list[str], stderr: IO[bytes] | None = None,
                 env: Mapping[str, str] | None = None) -> None:
        self._name = " ".join(command[-3:])
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env,
            text=True)
        self._facts: Facts | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def facts(self) -> Facts:
        """What it said when it was ready; waits for that."""
        if self._facts is None:
            self._facts = self._read(READY_SECONDS)
        return self._facts

    def tell(self, order: str) -> None:
        _ = self.facts
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(order + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self) -> Facts:
        return self._read(ROUND_SECONDS)

    def run(self, order: str) -> Facts:
        self.tell(order)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(ROUND_SECONDS)

    def __enter__(self) -> Role:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Who is interrupted does not wait for the end of a round."""
        if kind is not None and not issubclass(kind, Exception):
            self.kill()
        self.close()

    def close(self) -> None:
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                pass
        try:
            self._process.wait(ROUND_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self, seconds: float) -> Facts:
        out = self._process.stdout
        assert out is not None
        # One line an order: nothing is left in the reader's buffer between two of them.
        if not select.select([out], [], [], seconds)[0]:
            self.kill()
            raise BenchError(f"{self._name}: no answer within {seconds:.0f} s")
        line = out.readline()
        if not line:
            raise self._ended()
        answer: Facts = json.loads(line)
        return answer

    def _ended(self) -> BenchError:
        self._process.wait(ROUND_SECONDS)
        return BenchError(f"{self._name}: ended with status {self._process.returncode}")


def together(roles: list[Role], order: str) -> list[Facts]:
    """All at the same time."""
    for one in roles:
        one.tell(order)
    return [one.answer() for one in roles]


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.001)
