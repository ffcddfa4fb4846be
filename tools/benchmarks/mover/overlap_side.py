# SPDX-License-Identifier: Apache-2.0
"""A process that computes while blocks come: from the disk by the tier's thread, or from the arena
into memory of its own by a thread that copies."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable

import numpy as np

import kvshm

from ..pyside import make_keys
from .side import Facts, serve

LIMIT = 60.0
EDGE = 512  # of the square matrices whose product is one unit of computing


class Compute:
    """One core's worth; numpy is told by its environment to use one thread."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        self._a = random.random((EDGE, EDGE), np.float32)
        self._b = random.random((EDGE, EDGE), np.float32)
        self._out = np.empty_like(self._a)

    def __call__(self, units: float) -> Facts:
        began = time.perf_counter()
        for _ in range(int(units)):
            np.matmul(self._a, self._b, out=self._out)
        return {"seconds": time.perf_counter() - began}


def up(args: dict[str, str]) -> None:
    """G3 to G2. `cpus`: where all its threads run, the tier's too, which inherits it."""
    os.sched_setaffinity(0, {int(one) for one in args["cpus"].split(",")})
    n, block = int(args["blocks"]), int(args["block"])
    keys, compute = make_keys(5, 0, n), Compute()
    arena = kvshm.Arena.create(
        args["name"], blocks=n + 8, block_bytes=block, pin="off", tier=args["file"],
        tier_size=(n + 16) * (block + 4096), tier_options={"engine": "io_uring"})
    with arena.allocate(n, keys=keys) as fill:
        for i in range(n):
            np.frombuffer(memoryview(fill.view(i)), np.uint64)[:] = i
        fill.register().release()
    if not arena.tier_drain(LIMIT):
        raise SystemExit("the tier is not written")

    def come(units: float, wanted: np.ndarray = keys) -> Facts:
        arena.evict(wanted)
        began = time.perf_counter()
        with arena.match(wanted, load=True) as lease:
            compute(units)
            there = lease.wait(LIMIT)
            seconds = time.perf_counter() - began
            if not there or len(lease) != len(wanted):
                raise SystemExit(f"{len(lease)} of {len(wanted)} blocks came")
        return {"seconds": seconds}

    tier = arena.tier
    assert tier is not None
    serve({"compute": compute, "move": come, "both": come,
           "one": lambda units: come(units, keys[:1])},
          {"engine": tier.engine, "direct": tier.direct})


def out(args: dict[str, str]) -> None:
    """G2 to G1 by a thread, on another core where there is one; `plain`: without kvshm."""
    n, block = int(args["blocks"]), int(args["block"])
    cpus = sorted(os.sched_getaffinity(0))
    keys, compute = make_keys(6, 0, n), Compute()
    arena = kvshm.Arena.create(args["name"], blocks=n + 8, block_bytes=block, pin="off")
    with arena.allocate(n, keys=keys) as fill:
        for i in range(n):
            np.frombuffer(memoryview(fill.view(i)), np.uint64)[:] = i
        lease = fill.register()
    views = [lease.view(i) for i in range(n)]
    sources = [np.frombuffer(memoryview(view), np.uint8).ctypes.data for view in views]
    own = np.ones((n, block), np.uint8)
    os.sched_setaffinity(0, {cpus[0]})

    def copy() -> None:
        for i in range(n):
            lease.copy_out(i, own[i])

    def plain() -> None:
        for i in range(n):
            ctypes.memmove(own[i].ctypes.data, sources[i], block)

    def go(how: Callable[[], None], passes: int, units: float) -> Facts:
        def work() -> None:
            os.sched_setaffinity(0, {cpus[-1]})  # of this thread alone
            for _ in range(passes):
                how()

        thread = threading.Thread(target=work)
        began = time.perf_counter()
        thread.start()
        compute(units)
        thread.join()
        return {"seconds": time.perf_counter() - began}

    def one(_: float) -> Facts:
        began = time.perf_counter()
        with arena.match(keys[:1]) as found:
            found.copy_out(0, own[0])
        return {"seconds": time.perf_counter() - began}

    passes = int(args["passes"])
    how = plain if args["how"] == "plain" else copy
    serve({"compute": compute, "move": lambda units: go(how, passes, 0),
           "both": lambda units: go(how, passes, units), "one": one},
          {"cores": len(cpus), "bytes": n * block * passes})


SIDES = {"up": up, "out": out}
