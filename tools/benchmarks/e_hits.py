# SPDX-License-Identifier: Apache-2.0
"""Hit ratios of the policies on recorded traces, through a real arena of blocks without data.

The limits are targets: of each policy what a simulation of its exact form hits (tail-first, the
request's own blocks pinned; docs/results/eviction.md says whence) less one point, of LRU less 0.7
(1.0 on the agentic trace); of `adaptive` the best of LRU, CLOCK, ARC, S3-FIFO, SIEVE and MultiLRU
less 0.7, at 2 % less 1.5, and more where more is asked for.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kvshm.eviction import PRESETS, Policy, multi_lru

from ..replay.drive import replay
from ..replay.failures import ReplayError
from ..replay.reading import read_trace
from ..replay.trace import Trace
from .bench import Bench
from .native import BenchError
from .rows import AT_LEAST, Row, skipped

TITLE = "hit ratios of the policies on recorded traces"


class Load(NamedTuple):
    trace: str
    tokens_per_block: int
    percents: tuple[int, ...]  # of the trace's different blocks
    # What a policy must hit at least, in %, at each of them; None: it is shown.
    limits: dict[str, tuple[float | None, ...]]


LOADS = (
    Load("mooncake_conversation", 0, (2, 5, 10, 20), {
        "adaptive": (13.4, 21.3, 28.7, 33.83),
        "lru": (7.23, 18.88, 27.19, 33.83),
        "clock": (7.03, 19.28, 27.28, 33.14),
        "s3fifo": (10.42, 20.42, 27.91, 32.12),
        "multi_lru 2/6/15": (13.84, 20.00, 23.38, 29.10),
        "multi_lru 3/8/15": (10.34, 15.85, 23.98, 32.38),
        "lineage": (6.92, 18.58, 26.89, 33.53),
        "fifo": (None,) * 4, "lfu": (None,) * 4, "lineage-fifo": (None,) * 4}),
    Load("mooncake_synthetic", 0, (2, 5, 10, 20, 50), {
        "adaptive": (7.08, 16.58, 27.4, 41.3, 59.65),
        "lru": (None, None, 25.53, 38.61, None),
        "clock": (6.74, 14.65, 24.00, 39.22, 58.82),
        "s3fifo": (7.01, 14.78, 24.85, 39.63, 59.04),
        "multi_lru 2/6/15": (6.70, 16.28, 27.05, 40.93, 59.35),
        "multi_lru 3/8/15": (6.41, 13.62, 23.86, 37.19, 57.97),
        "lineage": (6.78, 14.66, 25.23, 38.31, 57.88),
        "fifo": (None,) * 5, "lfu": (None,) * 5, "lineage-fifo": (None,) * 5}),
    Load("synthetic_toolagent_like", 0, (2, 5, 10, 20), {
        "adaptive": (37.32, 42.54, 47.30, 50.85),
        "lru": (None,) * 4,
        "clock": (33.30, 41.26, 46.56, 50.28),
        "s3fifo": (35.59, 42.24, 47.00, 49.53),
        "multi_lru 2/6/15": (37.82, 41.66, 43.91, 48.22),
        "multi_lru 3/8/15": (34.36, 39.27, 45.15, 49.88),
        "lineage": (33.14, 40.92, 46.29, 50.55)}),
    Load("claude_code_agentic", 512, (1, 2, 5, 10), {
        "adaptive": (59.55, 85.09, 94.43, 95.47),
        "lru": (None, 84.79, None, None),
        "clock": (58.31, 83.80, 93.86, 95.09),
        "s3fifo": (56.54, 82.59, 93.72, 95.05),
        "lineage": (58.42, 84.79, 94.13, 95.17)}),
)
MEASURES = {f"E{n}": load for n, load in enumerate(LOADS, 1)}
_NAMED = {"multi_lru 2/6/15": multi_lru(2, 6, 15), "multi_lru 3/8/15": multi_lru(3, 8, 15)}


def measure(bench: Bench, load: Load) -> list[Row]:
    try:
        trace = read_trace(load.trace, tokens_per_block=load.tokens_per_block)
    except ReplayError as e:
        return [skipped(f"{policy} at {percent} %", "%", str(e), limit=limit, sense=AT_LEAST)
                for policy, percent, limit in _points(load)]
    return [_row(trace, policy, percent, limit) for policy, percent, limit in _points(load)]


def _points(load: Load) -> Iterator[tuple[str, int, float | None]]:
    for policy, limits in load.limits.items():
        for percent, limit in zip(load.percents, limits, strict=True):
            yield policy, percent, limit


def _row(trace: Trace, name: str, percent: int, limit: float | None) -> Row:
    policy: Policy = _NAMED.get(name) or PRESETS[name]
    blocks = trace.unique * percent // 100
    done = replay(trace, policy, blocks)
    told = done.document(trace)
    note = (f"{told['walk_steps_per_eviction'] or 0:.1f} steps, "
            f"{told['headers_per_eviction'] or 0:.1f} headers an eviction, {done.seconds:.1f} s")
    if done.broken:
        raise BenchError(f"{trace.name}, {name}: {'; '.join(done.broken)}")
    return Row(f"{name} at {percent} %", round(100 * told["block_hit_ratio"], 2), "%",
               limit=limit, sense=AT_LEAST, blocks=blocks, note=note)
