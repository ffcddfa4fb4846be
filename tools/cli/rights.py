# SPDX-License-Identifier: Apache-2.0
"""Warns of arenas that let in more users than kvshm ever does by itself."""
from __future__ import annotations

import sys


def warn_if_wide(name: str, path: str, mode: int) -> None:
    """One line on stderr, unless the mode is 0600, or 0660 as `group=` makes it.

    Whoever may read an arena reads everybody's KV and can hold back the reaping of a slot; whoever
    may write it can scribble over all of it.
    """
    group, others = mode >> 3 & 7, mode & 7
    if others or group not in (0, 6):
        print(f"kvshm: {name}: mode {mode:04o} lets other users in: wanted 0600, or 0660 for a "
              f"group; chmod 0600 {path}", file=sys.stderr)
