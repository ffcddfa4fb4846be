# SPDX-License-Identifier: Apache-2.0
"""P9: what an arena costs in memory, beside the data: the object itself, and in each process."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .bench import Bench
from .mounts import SMALL
from .rows import Row

TITLE = "metadata"
LIMIT_BLOCK, LIMIT_FIXED, LIMIT_PRIVATE = 192.0, float(4 << 20), 4.0
WHOLE = 1024  # blocks whose private counters fill a page


def measure(bench: Bench) -> list[Row]:
    """From two arenas without data: what grows with the blocks, and what does not."""
    few, many = (-(-n // WHOLE) * WHOLE for n in (bench.scale.small, bench.scale.blocks))
    bytes_of: dict[int, int] = {}
    private: dict[int, int] = {}
    said, beside = 0.0, 0
    for blocks in (few, many):
        with ExitStack() as stack:
            stored = bench.store(stack, SMALL, blocks=blocks)
            bytes_of[blocks] = stored.facts["bytes"]
            said = stored.facts["private_bytes"] / blocks
            role = bench.role(stack, "sizes", blocks=blocks, **stored.args())
            private[blocks] = role.run("use")["anonymous_bytes"]
            beside = len(_mapping(stored.facts["path"]) - stored.pids - {role.pid})
    a_block = (bytes_of[many] - bytes_of[few]) / (many - few)
    fixed = bytes_of[few] - few * a_block
    # Two digits: whether malloc took a page more or less is not ours.
    own = round((private[many] - private[few]) / (many - few), 2)
    about: dict[str, Any] = {"samples": 1, "pages": SMALL}
    return [
        Row("shared metadata, a block", a_block, "bytes", limit=LIMIT_BLOCK, blocks=many, **about),
        Row("shared metadata, an arena", fixed, "bytes", limit=LIMIT_FIXED, **about),
        Row("private to a process, a block", own, "bytes", limit=LIMIT_PRIVATE, blocks=many,
            note=f"anonymous memory after every block was used; kvshm says {said:g}", **about),
        Row("other processes that have the arena mapped", float(beside), "", limit=0.0,
            samples=1, note="no daemon"),
    ]


def _mapping(path: str) -> set[int]:
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if path in maps.read_text():
                found.add(int(maps.parent.name))
        except OSError:
            pass  # it ended, or is not ours
    return found
