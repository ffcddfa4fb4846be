# SPDX-License-Identifier: Apache-2.0
"""P8: what a SIGKILL of a process that holds every block costs the others."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from .bench import Bench
from .native import BenchError, Facts, Role
from .rows import Row, row, skipped

TITLE = "reaping after a SIGKILL"
LIMIT_MS, LIMIT_RATIO = 10.0, 2.0
QUIET_MS, AFTER_MS = 600, 400
REAP = "reaping, a million blocks held by the dead process"
RATIO = "others' p99 meanwhile, of their p99 before"


@dataclass(frozen=True)
class Kill:
    ms_per_million: float
    p99_before_us: float
    p99_meanwhile_us: float
    batches: int  # meanwhile


def measure(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for pages in bench.pages:
        kills = []
        for number in range(bench.scale.kills):
            bench.progress.step(f"kill {number + 1}, {pages} pages", number / bench.scale.kills)
            with ExitStack() as stack:
                kills.append(_kill(bench, stack, pages))
        about: dict[str, Any] = {"pages": pages, "blocks": bench.scale.blocks}
        rows.append(row(REAP, [k.ms_per_million for k in kills], "ms", limit=LIMIT_MS, **about))
        ratios = [k.p99_meanwhile_us / k.p99_before_us for k in kills if k.batches]
        if ratios:
            rows.append(row(RATIO, ratios, "x", limit=LIMIT_RATIO, processes=2,
                            note=f"batches of 1000, {min(k.batches for k in kills)} or more "
                                 "while it reaps", **about))
        else:
            rows.append(skipped(RATIO, "x", "reaping was over within a batch", **about))
        for what, us in (("before", [k.p99_before_us for k in kills]),
                         ("meanwhile", [k.p99_meanwhile_us for k in kills if k.batches])):
            if us:
                rows.append(row(f"  p99 of a batch {what}", us, "us", processes=2, **about))
    return rows


def _kill(bench: Bench, stack: ExitStack, pages: str) -> Kill:
    """One worker a core; the reaper shares the first one's."""
    blocks = bench.scale.blocks
    stored = bench.store(stack, pages, blocks=blocks)
    cpus = sorted(os.sched_getaffinity(0))[:2]
    workers = [bench.role(stack, "worker", blocks=blocks, order=7 + i, cpu=cpu, **stored.args())
               for i, cpu in enumerate(cpus)]
    reaper = bench.role(stack, "reaper", cpu=cpus[0], **stored.args())
    victim = bench.role(stack, "victim", blocks=blocks, **stored.args())
    for one in (*workers, reaper, victim):
        _ = one.facts
    if victim.facts["held"] != blocks:
        raise BenchError(f"the victim holds {victim.facts['held']} of {blocks} blocks")
    for one in workers:
        one.tell(f"work {QUIET_MS + AFTER_MS}")
    time.sleep(QUIET_MS / 1000)
    killed = time.monotonic_ns()  # the clock of the roles, too
    victim.kill()
    reaped = _reap(reaper)
    before: list[float] = []
    meanwhile: list[float] = []
    for one in workers:
        answer = one.answer()
        last = answer["start"]
        for end in answer["ends"]:
            if end < killed:
                before.append((end - last) / 1000)
            elif last < reaped["end"] and end > reaped["start"]:
                meanwhile.append((end - last) / 1000)
            last = end
    took = (reaped["end"] - reaped["start"]) / 1e6
    return Kill(took / (reaped["holds"] / 1e6), _p99(before), _p99(meanwhile) if meanwhile else 0,
                len(meanwhile))


def _reap(reaper: Role) -> Facts:
    """The call that found the dead process's holds: its life byte goes a moment after it."""
    deadline = time.monotonic() + 5
    while not (answer := reaper.run("reap"))["holds"]:
        if time.monotonic() > deadline:
            raise BenchError("the killed process's holds were not given back within 5 s")
    return answer


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]
