# SPDX-License-Identifier: Apache-2.0
"""Overlap: blocks that come while one core computes, of the longer of the two alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from ..bench import Bench
from ..native import BenchError, Role
from ..rows import Row, row, skipped
from . import breakeven

TITLE = "overlap: moving and computing together, of the longer alone"
BLOCK = 2 << 20
MOST = 1.15
SHARE = 0.75  # of the computing that moving is to take; between the two counts
BETWEEN = (0.5, 1.0)
TRIES = 4  # as many rounds as wanted, at most: the drive's rate changes between two of them
UP, ALSO = "G3 to G2 beside computing, on one core", "the same, cores as the kernel gives them"
OUT, PLAIN = "G2 to G1 by a copy, beside computing", "the same by plain memcpy"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def side(bench: Bench, stack: ExitStack, kind: str,
         inside: Callable[[list[str]], list[str]] | None = None, **args: object) -> Role:
    given = [f"{name}={value}" for name, value in args.items()]
    command = [sys.executable, "-m", f"{__package__}.side", kind, *given]
    role = Role(inside(command) if inside else command, env={**os.environ, **ONE_THREAD})
    return stack.enter_context(role)


def measure(bench: Bench, folder: Path, nbytes: int, rounds: int,
            cost: breakeven.Cost | None = None) -> list[Row]:
    cost = cost or breakeven.Cost()
    rows = []
    from_disk: breakeven.Times | str = ""
    cpus = sorted(os.sched_getaffinity(0))
    for what, where, more in ((UP, cpus[-1:], {"limit": MOST}), (ALSO, cpus, {})):
        with ExitStack() as stack:
            role = side(bench, stack, "up", name=bench.arena(), file=folder / "overlap",
                        blocks=nbytes // BLOCK, block=BLOCK, cpus=",".join(map(str, where)))
            try:
                found = role.facts
            except BenchError as error:
                rows.append(skipped(what, "x", str(error), **more))
                from_disk = str(error)
                continue
            note = f"{found['engine']}, {'O_DIRECT' if found['direct'] else 'page cache'}"
            rows += _rounds(bench, role, rounds, what, note, nbytes, **more)
            from_disk = breakeven.times(role, BLOCK, nbytes, 1, rounds)
        (folder / "overlap").unlink(missing_ok=True)
    passes = 4
    for what, how in ((OUT, "kvshm"), (PLAIN, "plain")):
        with ExitStack() as stack:
            role = side(bench, stack, "out", name=bench.arena(), blocks=nbytes // BLOCK,
                        block=BLOCK, how=how, passes=passes)
            note = f"{role.facts['cores']} cores"
            rows += _rounds(bench, role, rounds, what, note, nbytes * passes,
                            reference=how == "plain")
            if how == "kvshm":
                copied = breakeven.times(role, BLOCK, nbytes, passes, rounds)
    rows.append(breakeven.row(breakeven.MEMORY, [copied], cost))
    # What comes from the disk is copied after that, as what was in memory is.
    rows.append(skipped(breakeven.DISK, "tokens", from_disk) if isinstance(from_disk, str) else
                breakeven.row(breakeven.DISK, [from_disk, copied], cost))
    return rows


def _rounds(bench: Bench, role: Role, rounds: int, what: str, note: str, nbytes: int,
            **more: object) -> list[Row]:
    unit = role.run("compute 50")["seconds"] / 50
    units = max(1, int(role.run("move 0")["seconds"] / SHARE / unit))
    ratios: list[float] = []
    shares: list[float] = []
    rates: list[float] = []
    for number in range(rounds * TRIES):
        bench.progress.step(f"overlap: {what}", len(ratios) / rounds)
        words = ["move", "compute", "both"]
        took = {word: role.run(f"{word} {0 if word == 'move' else units}")["seconds"]
                for word in (words if number % 2 else words[::-1])}
        share = took["move"] / took["compute"]
        if BETWEEN[0] <= share <= BETWEEN[1]:
            ratios.append(took["both"] / max(took["move"], took["compute"]))
            shares.append(share)
            rates.append(nbytes / took["move"] / 1e9)
        if len(ratios) == rounds:
            break
        units = max(1, int(took["move"] / SHARE / unit))
    if len(ratios) < min(rounds, 5):
        return [skipped(what, "x", f"{len(ratios)} rounds of {rounds * TRIES} in which moving took "
                                   f"half to all of the computing", **more)]
    note = f"{note}; moving took {median(shares):.2f} of computing"
    return [row(what, ratios, "x", note=note, **more),
            row(f"{what}: moving alone", rates, "GB/s", reference=bool(more.get("reference")))]
