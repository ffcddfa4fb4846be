# SPDX-License-Identifier: Apache-2.0
"""A process that does what an engine's step does, at an engine's pace, and times each call."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from typing import Any

import kvshm

from ..pyside import make_keys
from .side import Facts, serve

LIMIT = 60.0
CALLS = ("match", "allocate", "register", "release")
PREFIX = 8  # blocks of a look-up
HELD = 16  # look-ups at a time, as of requests that run


def calls(args: dict[str, str]) -> None:
    block, blocks = int(args["block"]), int(args["blocks"])
    waits = args.get("waits") == "1"  # what an engine must not do: the control
    pause = float(args["pause_us"]) / 1e6
    known = 4 * blocks
    arena = kvshm.Arena.create(
        args["name"], blocks=blocks, block_bytes=block, pin="off", tier=args["file"],
        tier_size=2 * known * (block + 4096), tier_options={"queue": int(args["queue"])})
    for first in range(0, known, PREFIX):  # more than memory holds: what is looked up must be read
        with arena.allocate(PREFIX, keys=make_keys(8, first, PREFIX)) as fill:
            fill.register().release()
        if first % (8 * PREFIX) == 0 and not arena.tier_drain(LIMIT):
            raise SystemExit("the tier is not written")
    fresh = itertools.count(known)
    looked = itertools.count()

    def tier() -> kvshm.TierInfo:
        found = arena.tier
        assert found is not None
        return found

    def step(took: dict[str, list[int]], leases: deque[Any]) -> None:
        def timed(call: str, begin: int) -> None:
            took[call].append(time.perf_counter_ns() - begin)

        keys = make_keys(8, next(looked) * 7 * PREFIX % known, PREFIX)
        own = make_keys(8, next(fresh), 1)
        begin = time.perf_counter_ns()
        lease = arena.match(keys, load=True)
        if waits:
            lease.wait(LIMIT)
        timed("match", begin)
        leases.append(lease)
        begin = time.perf_counter_ns()
        try:
            fill = arena.allocate(1, keys=own)
        except kvshm.NoSpace:
            fill = None
        timed("allocate", begin)
        if fill is not None:
            begin = time.perf_counter_ns()
            done = fill.register()
            timed("register", begin)
            begin = time.perf_counter_ns()
            done.release()
            timed("release", begin)
        if len(leases) > HELD:
            begin = time.perf_counter_ns()
            leases.popleft().release()
            timed("release", begin)

    def run(ms: float) -> Facts:
        took: dict[str, list[int]] = {call: [] for call in CALLS}
        leases: deque[Any] = deque()
        queued, before = 0, arena.stats()
        end = time.monotonic() + ms / 1e3
        steps = 0
        while time.monotonic() < end:
            step(took, leases)
            steps += 1
            if steps % 32 == 0:
                queued = max(queued, tier().queued)
            time.sleep(pause)
        for lease in leases:
            lease.release()
        after = arena.stats()
        return {
            "steps": steps, "queued": queued, "private_kib": private_kib(),
            "dropped": after.tier_dropped_total - before.tier_dropped_total,
            "state": tier().state,
            **{f"{call}_us": p99(ns) / 1e3 for call, ns in took.items()}}

    def drain(_: float) -> Facts:
        return {"done": arena.tier_drain(LIMIT)}

    serve({"run": run, "drain": drain}, {"engine": tier().engine})


def p99(ns: list[int]) -> float:
    ns.sort()
    return float(ns[len(ns) * 99 // 100]) if ns else 0.0


def private_kib() -> int:
    """Memory that is this process's alone: the arena is not counted."""
    with open(f"/proc/{os.getpid()}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
    return 0
