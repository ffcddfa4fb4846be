# SPDX-License-Identifier: Apache-2.0
"""Names for test arenas, and their removal whatever became of the test."""
import os
import re
from pathlib import Path

shm_dir = Path("/dev/shm")

#: Every test arena of this pytest process is named so: its own can be told from those of others.
PREFIX = f"t-{os.getpid()}-"

_NAME = re.compile(r"kvshm\.t-([0-9]+)-")


def remove_leftovers(prefix: str = PREFIX) -> list[str]:
    """Unlink what is left of the arenas with this prefix; returns the file names."""
    found = [path for path in shm_dir.iterdir() if path.name.startswith(f"kvshm.{prefix}")]
    for path in found:
        path.unlink(missing_ok=True)
    return [path.name for path in found]


def remove_stale() -> list[str]:
    """Unlink the test arenas of pytest processes that no longer live (they were killed)."""
    removed = []
    for path in shm_dir.iterdir():
        match = _NAME.match(path.name)
        if match and not Path("/proc", match[1]).exists():
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed
