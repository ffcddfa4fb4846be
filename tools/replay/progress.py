# SPDX-License-Identifier: Apache-2.0
"""A bar on a terminal, by rich; in a pipe a line now and then. Both on stderr."""
from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

PLAIN_SECONDS = 10.0


class Progress:
    """One stage after the other, each of so many requests."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._stage, self._total, self._done = "", 0, 0
        self._said = time.monotonic()
        self._bar = None if quiet or not sys.stderr.isatty() else _bar()
        self._task: Any = None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, what: str, total: int) -> None:
        self._stage, self._total, self._done = what, total, 0
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=total)

    def advance(self, requests: int) -> None:
        self._done += requests
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        elif not self._quiet and time.monotonic() - self._said > PLAIN_SECONDS:
            self._said = time.monotonic()
            share = 100 * self._done // max(1, self._total)
            print(f"kvshm: {self._stage}: {share} %", file=sys.stderr, flush=True)


def _bar() -> Any:
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    return progress.Progress(
        progress.TextColumn("{task.description}"), progress.BarColumn(),
        progress.TaskProgressColumn(), progress.TimeRemainingColumn(),
        console=Console(stderr=True), transient=True)
