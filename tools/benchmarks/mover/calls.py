# SPDX-License-Identifier: Apache-2.0
"""An engine's calls while the disk below crawls: none waits for it, and nothing piles up."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ..bench import Bench
from ..native import BenchError, Facts, Role
from ..rows import Row, row, skipped
from .calls_side import CALLS
from .overlap import side
from .throttle import Refused, Throttle

TITLE = "an engine's calls, p99, with the disk at 10 MB/s, of the same load with the disk as it is"
MOST = 2.0
SLOW = 10e6  # bytes a second, each way
MOST_MIB = 32  # of private memory that may be added


@dataclass(frozen=True)
class Load:
    block: int = 256 << 10
    blocks: int = 256
    queue: int = 256
    pause_us: int = 500
    ms: int = 3000
    waits: bool = False


def measure(bench: Bench, folder: Path, load: Load, rounds: int) -> list[Row]:
    def missing(why: str) -> list[Row]:
        return [skipped(f"{call}: p99", "x", why, limit=MOST) for call in CALLS]

    with ExitStack() as stack:
        try:
            throttle = stack.enter_context(Throttle(folder))
        except Refused as error:
            return missing(f"the disk cannot be made slow: {error}")
        role = side(bench, stack, "calls", throttle.command, name=bench.arena(),
                    file=folder / "calls", block=load.block, blocks=load.blocks, queue=load.queue,
                    pause_us=load.pause_us, waits=int(load.waits))
        try:
            engine = role.facts["engine"]
        except BenchError as error:
            return missing(str(error))
        fast, slow = both(bench, role, throttle, load, rounds)
    rows = []
    for call in CALLS:
        pairs = list(zip((one[f"{call}_us"] for one in slow), (one[f"{call}_us"] for one in fast),
                         strict=True))
        rows.append(row(f"{call}: p99, of the same unthrottled", [a / b for a, b in pairs], "x",
                        limit=MOST, note=engine))
        rows.append(row(f"{call}: p99, disk at 10 MB/s", [a for a, _ in pairs], "us"))
        rows.append(row(f"{call}: p99, disk as it is", [b for _, b in pairs], "us",
                        reference=True))
    rows.append(row("blocks that wait to be written, most", [one["queued"] for one in slow], "",
                    limit=float(load.queue)))
    grown = (slow[-1]["private_kib"] - fast[0]["private_kib"]) / 1024
    rows.append(row("private memory added in all rounds", [grown], "MiB", limit=float(MOST_MIB)))
    return rows


def both(bench: Bench, role: Role, throttle: Throttle, load: Load, rounds: int
         ) -> tuple[list[Facts], list[Facts]]:
    """Rounds in turn, with the disk as it is and slow; a first one of each does not count. What
    piled up is written before the next."""
    found: dict[bool, list[Facts]] = {False: [], True: []}
    for number in range(-1, rounds):
        for slow in ((False, True) if number % 2 else (True, False)):
            bench.progress.step("calls", (number + 1) / (rounds + 1))
            throttle.set(read=SLOW * slow, write=SLOW * slow)
            facts = role.run(f"run {load.ms}")
            throttle.set()
            role.run("drain 0")
            if number >= 0:
                found[slow].append(facts)
    return found[False], found[True]
