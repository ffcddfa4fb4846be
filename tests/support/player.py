# SPDX-License-Identifier: Apache-2.0
"""A worker that does what the test tells it, statement by statement, in a process of its own.

The statements find ``kvshm``, ``np``, ``os``, ``time`` and all of support.oracle.
"""
from __future__ import annotations

import textwrap
from typing import Any

from support.worker import Worker

PLAYER = r"""
import os, sys, time, signal
import numpy as np
import kvshm
for _name in kvshm.__all__:  # all that it loads, before this is another user who may not read it
    getattr(kvshm, _name)
from support.oracle import *
log = []
kvshm.set_log(lambda level, text: log.append([level, text]))
say("ready")
while True:
    _mode, _code = hear()
    try:
        if _mode == "get":
            _answer = ["value", eval(_code, globals())]
        else:
            exec(compile(_code, "<player>", "exec"), globals())
            _answer = ["value", None]
    except Exception as _error:
        _answer = ["error", type(_error).__name__, str(_error)]
        _error.__traceback__ = None
    say(_answer)
"""


class PlayerError(AssertionError):
    """The statement raised; `kind` is the class's name, `text` its message."""

    def __init__(self, kind: str, text: str, code: str) -> None:
        super().__init__(f"{kind}: {text}\nin: {code}")
        self.kind, self.text = kind, text


class Player:
    """Remote control of a Worker that runs PLAYER."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        assert worker.hear() == "ready"

    @property
    def pid(self) -> int:
        return self.worker.pid

    def send(self, code: str, mode: str = "do") -> None:
        """Start a statement and do not wait for its end; `answer` does."""
        self.worker.say([mode, textwrap.dedent(code)])

    def answer(self, timeout: float = 30.0) -> Any:
        kind, *rest = self.worker.hear(timeout)
        if kind == "error":
            raise PlayerError(rest[0], rest[1], "(sent before)")
        return rest[0]

    def do(self, code: str, timeout: float = 30.0) -> None:
        """Run statements."""
        self._ask("do", code, timeout)

    def get(self, code: str, timeout: float = 30.0) -> Any:
        """The value of an expression, as JSON can carry it."""
        return self._ask("get", code, timeout)

    def fails(self, code: str, timeout: float = 30.0) -> PlayerError:
        """Run statements that must raise: what they raised."""
        try:
            self._ask("do", code, timeout)
        except PlayerError as error:
            return error
        raise AssertionError(f"raised nothing: {code}")

    def _ask(self, mode: str, code: str, timeout: float) -> Any:
        self.send(code, mode)
        kind, *rest = self.worker.hear(timeout)
        if kind == "error":
            raise PlayerError(rest[0], rest[1], code)
        return rest[0]

    def kill(self) -> None:
        self.worker.kill()

    def end(self) -> int:
        """Let it end by itself, as a program does: its exit status."""
        assert self.worker.process.stdin is not None
        self.worker.say(["do", "raise SystemExit(0)"])
        return self.worker.wait(10)
