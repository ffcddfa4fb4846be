# SPDX-License-Identifier: Apache-2.0
"""A bar with the time left on a terminal; plain lines elsewhere."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

WIDTH = 24
PLAIN_SECONDS = 30.0
# What the programs say of themselves: "12 of 100 kills", "[3/85]", "1,000 of 9,000 (11 %)".
COUNTED = re.compile(r"([\d,]+) of ([\d,]+)|(\d+)/(\d+)")


def fraction(line: str) -> float | None:
    """How far the program that wrote this line says it has come, 0 to 1."""
    found = COUNTED.search(line)
    if not found:
        return None
    done, of = (int(n.replace(",", "")) for n in found.groups() if n is not None)
    return min(1.0, done / of) if of else None


class Progress:
    """Stages by name, each with the seconds that it is expected to take."""

    def __init__(self, stages: Sequence[tuple[str, float]], out: TextIO = sys.stderr) -> None:
        self._expected = dict(stages)
        self._out = out
        self._live = out.isatty()
        self._began = self._stage_began = self._shown = time.monotonic()
        self._stage = ""
        self._done = 0.0  # expected seconds of the stages that are over

    def start(self, stage: str) -> None:
        if self._stage:
            self._done += self._expected[self._stage]
        self._stage = stage
        self._stage_began = time.monotonic()
        self._shown = 0.0
        self.say("begins")

    def say(self, line: str) -> None:
        now = time.monotonic()
        if now - self._shown < (0.2 if self._live else PLAIN_SECONDS):
            return
        self._shown = now
        part = fraction(line)
        text = self.line(line, part, now)
        if self._live:
            columns = shutil.get_terminal_size().columns
            self._out.write("\r\x1b[K" + text[:columns - 1])
        else:
            self._out.write(text + "\n")
        self._out.flush()

    def line(self, what: str, part: float | None, now: float) -> str:
        whole = sum(self._expected.values())
        expected = self._expected.get(self._stage, 0.0)
        spent = now - self._stage_began
        if part:
            left_here = spent / part * (1 - part)
        else:
            left_here = max(expected - spent, 0.0)
        share = min(part if part is not None else spent / max(expected, 1.0), 1.0)
        full = round((self._done + share * expected) / max(whole, 1.0) * WIDTH)
        left = left_here + whole - self._done - expected
        return (f"{now - self._began:5.0f} s [{'#' * full}{'.' * (WIDTH - full)}] "
                f"{left / 60:3.0f} min left  {self._stage}: {what.strip()}")

    def close(self) -> None:
        if self._live:
            self._out.write("\r\x1b[K")
            self._out.flush()
