# SPDX-License-Identifier: Apache-2.0
"""One live line on stderr; on a pipe a line per phase and a sign of life every few seconds."""

from __future__ import annotations

import shutil
import sys
import threading
import time

QUIET_SECONDS = 5.0


class Progress:
    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._began = self._printed = time.monotonic()
        self._phase = ""
        self._states: dict[str, str] = {}
        self._lock = threading.Lock()

    def phase(self, text: str) -> None:
        with self._lock:
            self._phase = text
            self._show(force=True)

    def state(self, worker: str, text: str) -> None:
        """What a worker is doing now; "" takes it off the line."""
        with self._lock:
            if text:
                self._states[worker] = text
            else:
                self._states.pop(worker, None)
            self._show(force=False)

    def close(self) -> None:
        with self._lock:
            if self._live:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()

    def _show(self, force: bool) -> None:
        now = time.monotonic()
        if not self._live and not force and now - self._printed < QUIET_SECONDS:
            return
        self._printed = now
        states = "".join(f" | {name} {text}" for name, text in sorted(self._states.items()))
        line = f"{now - self._began:5.1f} s  {self._phase}{states}"
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write("\r\x1b[K" + line[:width])
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
