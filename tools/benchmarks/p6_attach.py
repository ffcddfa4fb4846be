# SPDX-License-Identifier: Apache-2.0
"""P6: attaching to a populated arena, with the first touch of every page."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from .bench import GIB, SPARE_BYTES, Bench, room_for
from .machine import meminfo
from .mounts import HUGE, SMALL
from .rounds import interleave, samples
from .rows import Row, row, skipped

TITLE = "attach to a populated arena"
BLOCK_BYTES = 2 << 20
LIMIT_MS_PER_GIB, LIMIT_MS = 1.25, 20.0
BOTH = "attach and touch every page"
MAP = "attach"


def measure(bench: Bench) -> list[Row]:
    wanted = bench.scale.attach_bytes
    note = ""
    if room_for(wanted):
        free = meminfo("MemAvailable") - SPARE_BYTES
        note = f"{wanted / GIB:.2f} GiB do not fit into memory now; "
        wanted = max(free // GIB * GIB, GIB // 4)
    rows = []
    for pages in bench.pages:
        with ExitStack() as stack:
            rows += _attach(bench, stack, pages, wanted, note)
    if HUGE not in bench.pages:
        rows.append(skipped(BOTH, "ms/GiB", bench.mounts.why_not, limit=LIMIT_MS_PER_GIB,
                            pages=HUGE))
    return rows


def _attach(bench: Bench, stack: ExitStack, pages: str, wanted: int, note: str) -> list[Row]:
    bench.progress.step(f"populating {wanted / GIB:.2f} GiB, {pages} pages", 0)
    stored = bench.store(stack, pages, blocks=wanted // BLOCK_BYTES, block_bytes=BLOCK_BYTES,
                         fill=0)
    role = bench.role(stack, "attach", stride=4096 if pages == SMALL else 2 << 20,
                      **stored.args())
    got = interleave({"attach": partial(role.run, "attach")}, bench.scale.rounds,
                     bench.progress, pages)["attach"]
    gib = stored.facts["bytes"] / GIB
    size = f"{note}measured at {gib:.2f} GiB"
    attach, touch = samples(got, "attach_ms"), samples(got, "touch_ms")
    both = [(a + t) / gib for a, t in zip(attach, touch, strict=True)]
    huge = pages == HUGE
    return [
        row(MAP, attach, "ms", pages=pages, note=size, limit=None if huge else LIMIT_MS),
        row(BOTH, both, "ms/GiB", pages=pages, note=size,
            limit=LIMIT_MS_PER_GIB if huge else None),
        row("page tables of a process", [t / gib / 1024 for t in samples(got, "table_bytes")],
            "KiB/GiB", pages=pages),
        Row("creating and populating it", stored.facts["create_ms"] / gib, "ms/GiB", pages=pages,
            samples=1),
    ]
