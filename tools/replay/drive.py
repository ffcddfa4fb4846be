# SPDX-License-Identifier: Apache-2.0
"""One process serves a whole trace from a real arena."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import kvshm
import numpy as np
import numpy.typing as npt
from kvshm.eviction import Policy
from kvshm.eviction.serving import serve

from .controller import ACCESSES, step_of
from .keys import keys_of
from .outcome import Outcome, growth
from .temporary import temporary_arena
from .trace import Trace, Whole

PIECE = 1 << 20    # accesses whose keys are made at a time
BETWEEN = 1 << 17  # accesses between two looks at signals and at the bar

Tick = Callable[[int], None]


def replay(trace: Trace, policy: str | Policy, blocks: int,
           tick: Tick = lambda requests: None) -> Outcome:
    """tick: told of each few requests that were served."""
    began = time.monotonic()
    hits = np.zeros(trace.requests, np.int32)
    name = policy if isinstance(policy, str) else policy.name
    with temporary_arena(blocks, policy) as arena:
        before = arena.stats()
        refused = serve_all(arena, trace, hits, step_of(name), tick)
        counted = growth(before, arena.stats())
        broken = broken_of(arena)
    return Outcome(name, blocks, 1, hits, counted, refused, time.monotonic() - began,
                   broken=broken)


def serve_all(arena: kvshm.Arena, trace: Trace, hits: npt.NDArray[np.int32],
              step: Callable[[Any], Any] | None, tick: Tick) -> int:
    """All requests in order; returns how many blocks had no room."""
    refused = 0
    for first, last in pieces(trace.bounds, PIECE):
        start = trace.bounds[first]
        keys = keys_of(trace.ids[start:trace.bounds[last]])
        bounds = trace.bounds[first:last + 1] - start
        for a, b in pieces(bounds, ACCESSES if step else BETWEEN):
            refused += serve(arena, keys, bounds[a:b + 1], hits[first + a:first + b])
            if step:
                step(arena)
            tick(b - a)
    return refused


def pieces(bounds: Whole, accesses: int) -> Iterator[tuple[int, int]]:
    """Ranges of requests, each of about so many accesses, and of one request at least."""
    first, count = 0, len(bounds) - 1
    while first < count:
        last = int(np.searchsorted(bounds, bounds[first] + accesses, "right")) - 1
        last = min(max(last, first + 1), count)
        yield first, last
        first = last


def broken_of(arena: kvshm.Arena) -> tuple[str, ...]:
    """Invariants that do not hold, in words."""
    return tuple(f"I{b.invariant} of block {b.id}: {b.what}" for b in arena.is_valid())
