# SPDX-License-Identifier: Apache-2.0
"""From what a trace's lines say to one array of ids, of coarser blocks where asked for.

A block of k of the trace's blocks has the id of its last one: that id stands for all before it.
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .trace import Ids, Whole

CHUNK = 1 << 22  # ids that are expanded at a time


def join(requests: Sequence[Ids], every: int) -> tuple[Ids, Whole]:
    """ids and bounds of requests whose ids are listed."""
    kept = [ids[every - 1::every] for ids in requests]
    ids = np.concatenate(kept) if kept else np.empty(0, np.uint64)
    return ids, _bounds(np.array([len(k) for k in kept], np.int64))


def expand(firsts: Ids, counts: Whole, runs: Whole, every: int) -> tuple[Ids, Whole]:
    """The same of requests that are runs: run j is firsts[j] and the counts[j] - 1 ids after it;
    request i has the next runs[i] of them."""
    run_ends = np.cumsum(runs)
    ends = np.concatenate([[0], np.cumsum(counts)])[np.concatenate([[0], run_ends])]
    lengths = np.diff(ends)
    parts: list[Ids] = []
    start = 0
    while start < len(runs):
        # As many requests as fit into a chunk, one at least.
        stop = int(np.searchsorted(ends, ends[start] + CHUNK, "right")) - 1
        stop = min(max(stop, start + 1), len(runs))
        a, b = int(run_ends[start] - runs[start]), int(run_ends[stop - 1])
        parts.append(_expand(firsts[a:b], counts[a:b], lengths[start:stop], every))
        start = stop
    ids = np.concatenate(parts) if parts else np.empty(0, np.uint64)
    return ids, _bounds(lengths // every)


def _expand(firsts: Ids, counts: Whole, lengths: Whole, every: int) -> Ids:
    at = np.arange(int(counts.sum()), dtype=np.int64)
    behind = np.repeat(np.cumsum(counts) - counts, counts)
    ids: Ids = np.repeat(firsts, counts) + (at - behind).astype(np.uint64)
    if every == 1:
        return ids
    place = at - np.repeat(np.cumsum(lengths) - lengths, lengths)
    last: Ids = ids[place % every == every - 1]
    return last


def _bounds(lengths: Whole) -> Whole:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
