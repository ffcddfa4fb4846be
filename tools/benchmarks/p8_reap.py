# SPDX-License-Identifier: Apache-2.0
"""P8: what a SIGKILL of a process that holds every block costs the others."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from .bench import Bench, Stored
from .native import BenchError, Facts, Role
from .rows import Row, row, skipped

TITLE = "reaping after a SIGKILL"
LIMIT_MS, LIMIT_RATIO = 10.0, 2.0
QUIET_MS, AFTER_MS = 600, 400
REAP = "reaping, a million blocks held by the dead process"
RATIO = "others' p99 meanwhile, of their p99 before"


@dataclass(frozen=True)
class Batches:  # of 1000 operations, us
    before: list[float]
    meanwhile: list[float]

    @property
    def ratio(self) -> float:
        return p99(self.meanwhile) / p99(self.before)


def measure(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for pages in bench.pages:
        about: dict[str, Any] = {"pages": pages, "blocks": bench.scale.blocks}
        kills = []
        for number in range(bench.scale.kills):
            bench.progress.step(f"kill {number + 1}, {pages} pages", number / bench.scale.kills)
            with ExitStack() as stack:
                kills.append(_kill(bench, stack, pages))
        alone = [k[0] for k in kills]
        rows += [
            row(REAP, [_per_million(a, a["end"] - a["start"]) for a in alone], "ms",
                limit=LIMIT_MS, note="by a process that uses the arena", **about),
            row("  of it on a CPU", [_per_million(a, a["cpu"]) for a in alone], "ms", **about),
        ]
        rows += _others([k[1] for k in kills], "the worker on the other core", LIMIT_RATIO, about)
        rows += _others([k[2] for k in kills], "the worker on the reaper's core", None, about)
    return rows


def _others(
    kills: list[Batches], who: str, limit: float | None, about: dict[str, Any]
) -> list[Row]:
    seen = [k for k in kills if k.before and k.meanwhile]
    if not seen:
        why = "one CPU only" if not any(k.before for k in kills) else "over within a batch"
        return [skipped(RATIO, "x", why, limit=limit, **about)]
    return [
        row(RATIO, [k.ratio for k in seen], "x", limit=limit, processes=2,
            note=f"{who}; {min(len(k.meanwhile) for k in seen)} batches or more", **about),
        row("  p99 of 1000 operations, before", [p99(k.before) for k in seen], "us", **about),
        row("  p99 of 1000 operations, meanwhile", [p99(k.meanwhile) for k in seen], "us",
            **about),
    ]


def _kill(bench: Bench, stack: ExitStack, pages: str) -> tuple[Facts, Batches, Batches]:
    """Reaping by itself; then beside one worker a core, the reaper on the first one's: what the
    other worker saw, and what the first one saw."""
    blocks = bench.scale.blocks
    stored = bench.store(stack, pages, blocks=blocks)
    cpus = sorted(os.sched_getaffinity(0))[:2]
    reaper = bench.role(stack, "reaper", blocks=blocks, cpu=cpus[0], **stored.args())
    _ = reaper.facts
    _victim(bench, stack, stored).kill()
    alone = _reap(reaper)
    workers = [bench.role(stack, "worker", blocks=blocks, order=7 + i, cpu=cpu, **stored.args())
               for i, cpu in enumerate(cpus)]
    victim = _victim(bench, stack, stored)
    for one in workers:
        one.tell(f"work {QUIET_MS + AFTER_MS}")
    time.sleep(QUIET_MS / 1000)
    killed = time.monotonic_ns()  # the clock of the roles, too
    victim.kill()
    reaped = _reap(reaper)
    seen = [_batches(one.answer(), killed, reaped) for one in workers]
    return alone, seen[1] if len(seen) > 1 else Batches([], []), seen[0]


def _victim(bench: Bench, stack: ExitStack, stored: Stored) -> Role:
    blocks = bench.scale.blocks
    victim = bench.role(stack, "victim", blocks=blocks, **stored.args())
    if victim.facts["held"] != blocks:
        raise BenchError(f"the victim holds {victim.facts['held']} of {blocks} blocks")
    return victim


def _batches(answer: Facts, killed: int, reaped: Facts) -> Batches:
    found = Batches([], [])
    last = answer["start"]
    for end in answer["ends"]:
        if end < killed:
            found.before.append((end - last) / 1000)
        elif last < reaped["end"] and end > reaped["start"]:
            found.meanwhile.append((end - last) / 1000)
        last = end
    return found


def _per_million(answer: Facts, ns: float) -> float:
    return float(ns / answer["holds"])  # ns a block = ms a million


def _reap(reaper: Role) -> Facts:
    """The call that found the dead process's holds: its life byte goes a moment after it."""
    deadline = time.monotonic() + 5
    while not (answer := reaper.run("reap"))["holds"]:
        if time.monotonic() > deadline:
            raise BenchError("the killed process's holds were not given back within 5 s")
    return answer


def p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]
