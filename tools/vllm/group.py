# SPDX-License-Identifier: Apache-2.0
"""Process groups: who is in one, and its end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

LIMIT = 30.0  # seconds for the kernel to take killed processes off
# Python's own helper, which unlinks the shared memory of those that died.
TRACKER = b"multiprocessing.resource_tracker"
TRACKER_LIMIT = 5.0  # seconds for its work


def members(group: int) -> list[int]:
    """Processes of the group that still run; those that only wait to be reaped do not."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # pid (name) state parent group: the name may hold blanks and brackets
            state, _, its = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # it has just ended
        if int(its) == group and state not in "ZX":
            found.append(int(folder.name))
    return found


def empties(group: int, limit: float) -> bool:
    """Waits until none of the group runs."""
    deadline = time.monotonic() + limit
    while members(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def kill_group(group: int) -> None:
    """SIGKILL to all of it; returns when none is left. One that forks meanwhile is caught too."""
    deadline = time.monotonic() + LIMIT
    while doomed := [pid for pid in members(group) if not _tracks(pid)]:
        for pid in doomed:
            _kill(pid)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {doomed} outlived SIGKILL for {LIMIT:g} s")
        time.sleep(0.01)
    if not empties(group, TRACKER_LIMIT):
        for pid in members(group):
            _kill(pid)
        empties(group, LIMIT)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _tracks(pid: int) -> bool:
    try:
        return TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
