# SPDX-License-Identifier: Apache-2.0
"""Arenas in the shm mount that measuring processes made and could not remove: killed, or failed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import kvshm

PREFIX = "bench-"
SHM = Path("/dev/shm")
# bench-PID-N, bench-vllm-PID-N, bench-peers-BLOCK-PID; the image of a tier goes with its arena, or
# by itself.
NAME = re.compile(r"kvshm\.(bench-(?:vllm-(\d+)-\d+|peers-\d+-(\d+)|(\d+)-\d+)(?:-g3)?)$")
SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def swept() -> Iterator[None]:
    """Ours are gone in the end, also when we are interrupted; those that a run before us left,
    which was killed, are gone at once."""
    before = {number: signal.signal(number, _end) for number in SIGNALS}
    try:
        sweep()
        yield
    finally:
        for number in SIGNALS:  # not again in the midst of it
            signal.signal(number, signal.SIG_IGN)
        sweep(os.getpid())
        for number, handler in before.items():
            signal.signal(number, handler)


def sweep(own: int | None = None) -> None:
    """What names this process, or one that is no more. Nobody else's: an arena to which somebody is
    attached stays."""
    for entry in os.listdir(SHM):
        found = NAME.fullmatch(entry)
        if not found:
            continue
        pid = int(next(one for one in found.groups()[1:] if one))
        if pid != own and os.path.exists(f"/proc/{pid}"):
            continue
        try:
            kvshm.remove(found[1], force=pid == own)
        except (kvshm.Error, OSError):
            pass


def _end(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)
