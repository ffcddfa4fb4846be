# SPDX-License-Identifier: Apache-2.0
"""One shared arena against private ones, a part of its blocks each, behind a router.

Routers: round robin; sticky, a session stays where its hash says; and prefix-aware, which sends a
request where the longest prefix is, minus half of what that engine's recent load is above the mean.
"""
from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import NamedTuple

import kvshm
import numpy as np
import numpy.typing as npt
from kvshm.eviction.serving import prefix, serve

from .controller import step_of
from .drive import Tick, replay, serve_all
from .failures import ReplayError
from .keys import keys_of
from .progress import Progress
from .ratios import Ratios, ratios
from .temporary import temporary_arena
from .trace import Trace, Whole

Hits = npt.NDArray[np.int32]

SHARED = "shared"    # the routing of the one arena

WEIGHT = 0.5         # of the load, beside blocks of prefix
FORGET = 60.0        # seconds after which an e-th of a load is left
STEP_REQUESTS = 16   # between two steps of the controllers


class Comparison(NamedTuple):
    """engines, routing: of the private arenas; 1 and SHARED is the one for all."""

    engines: int
    routing: str
    blocks: int
    ratios: Ratios


def compare_sharing(trace: Trace, policy: str, blocks: int, engines: list[int],
                    progress: Progress) -> list[Comparison]:
    progress.stage("one for all", trace.requests)
    shared = replay(trace, policy, blocks, progress.advance).ratios(trace)
    found = [Comparison(1, SHARED, blocks, shared)]
    for n in engines:
        if blocks // n < 1:
            raise ReplayError(f"{blocks} blocks for {n} engines: not one each")
        for name, route in ROUTINGS.items():
            if name == "sticky" and trace.sessions is None:
                continue
            progress.stage(f"{n} private, {name}", trace.requests)
            hits = route(trace, policy, blocks // n, n, progress.advance)
            found.append(Comparison(n, name, blocks // n, ratios(trace, hits)))
    return found


def _round_robin(trace: Trace, policy: str, blocks: int, engines: int, tick: Tick) -> Hits:
    return _dealt(trace, policy, blocks, np.arange(trace.requests) % engines, tick)


def _sticky(trace: Trace, policy: str, blocks: int, engines: int, tick: Tick) -> Hits:
    """By a hash of the session: the top of its number times 2^32 / golden ratio, so that sessions
    that begin one after the other spread."""
    assert trace.sessions is not None
    spread = trace.sessions.astype(np.uint64) * np.uint64(2654435761) % np.uint64(1 << 32)
    return _dealt(trace, policy, blocks, (spread * np.uint64(engines) >> np.uint64(32)).astype(
        np.int64), tick)


def _dealt(trace: Trace, policy: str, blocks: int, engine: Whole, tick: Tick) -> Hits:
    """Who serves what is known beforehand: one engine after the other."""
    hits = np.zeros(trace.requests, np.int32)
    for one in np.unique(engine):
        mine = np.flatnonzero(engine == one)
        found = np.zeros(len(mine), np.int32)
        with temporary_arena(blocks, policy) as arena:
            serve_all(arena, trace.select(mine), found, step_of(policy), tick)
        hits[mine] = found
    return hits


def _prefix_aware(trace: Trace, policy: str, blocks: int, engines: int, tick: Tick) -> Hits:
    hits = np.zeros(trace.requests, np.int32)
    load = np.zeros(engines)
    before, step = 0.0, step_of(policy)
    with contextlib.ExitStack() as stack:
        arenas: list[kvshm.Arena] = [stack.enter_context(temporary_arena(blocks, policy))
                                     for _ in range(engines)]
        for i in range(trace.requests):
            keys = keys_of(trace.ids[trace.bounds[i]:trace.bounds[i + 1]])
            load *= math.exp(-max(0.0, float(trace.seconds[i]) - before) / FORGET)
            before = float(trace.seconds[i])
            match = np.array([prefix(arena, keys) for arena in arenas])
            # argmax takes the lowest of equal ones
            to = int(np.argmax(match - WEIGHT * (load - load.mean())))
            load[to] += len(keys) - match[to]
            serve(arenas[to], keys, np.array([0, len(keys)]), hits[i:i + 1])
            if step and i % STEP_REQUESTS == 0:
                for arena in arenas:
                    step(arena)
            tick(1)
    return hits


ROUTINGS: dict[str, Callable[[Trace, str, int, int, Tick], Hits]] = {
    "round-robin": _round_robin,
    "prefix-aware": _prefix_aware,
    "sticky": _sticky,
}
