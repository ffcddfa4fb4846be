# SPDX-License-Identifier: Apache-2.0
"""Process groups: who is in one, and its end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

LIMIT = 30.0  # seconds for the kernel to take killed processes off


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


def kill_group(group: int) -> None:
    """SIGKILL to all of it; returns when none is left. One that forks meanwhile is caught too."""
    deadline = time.monotonic() + LIMIT
    while members(group):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {members(group)} outlived SIGKILL for {LIMIT:g} s")
        time.sleep(0.01)
