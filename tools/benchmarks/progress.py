# SPDX-License-Identifier: Apache-2.0
"""A bar on stderr; on a pipe a line for each target."""

from __future__ import annotations

import shutil
import sys
import time

WIDTH = 24


class Progress:
    def __init__(self, parts: list[str]) -> None:
        self._parts = parts
        self._done = -1
        self._live = sys.stderr.isatty()
        self._began = time.monotonic()

    def part(self, name: str) -> None:
        self._done = self._parts.index(name)
        if not self._live:
            print(f"{time.monotonic() - self._began:6.1f} s  {name}", file=sys.stderr, flush=True)
        self.step(name, 0.0)

    def step(self, what: str, fraction: float) -> None:
        if not self._live:
            return
        whole = (max(self._done, 0) + fraction) / len(self._parts)
        full = round(whole * WIDTH)
        line = (f"{time.monotonic() - self._began:5.0f} s [{'#' * full}{'.' * (WIDTH - full)}] "
                f"{self._parts[max(self._done, 0)]} {what}")
        sys.stderr.write("\r\x1b[K" + line[:shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()

    def close(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
