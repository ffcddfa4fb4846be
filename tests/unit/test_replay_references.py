# SPDX-License-Identifier: Apache-2.0
"""Exact LRU, ARC and Belady's choice: against other implementations, and on recorded traces."""
import itertools
from collections import OrderedDict
from typing import Any

import kvshm
import numpy as np
import pytest
from kvshm.eviction.exact import exact_arc, exact_belady, exact_lru
from kvshm.tools.replay.ratios import ratios
from kvshm.tools.replay.synthetic import KINDS, synthetic
from support.traces import recorded


def chains(requests: list[list[int]]) -> tuple[Any, Any]:
    bounds = np.cumsum([0, *map(len, requests)])
    return np.array([x for r in requests for x in r], np.int32), bounds.astype(np.int64)


def tree_load(seed: int, requests: int, most: int) -> list[list[int]]:
    """Random walks down a random tree: an id has always the same ids before it."""
    r, known = np.random.default_rng(seed), itertools.count()
    children: dict[Any, list[int]] = {None: []}
    load = []
    for _ in range(requests):
        at, chain = None, []
        for _ in range(int(r.integers(1, most + 1))):
            if not children[at] or r.random() < 0.3:
                children[at].append(next(known))
                children[children[at][-1]] = []
            at = children[at][int(r.integers(len(children[at])))]
            chain.append(at)
        load.append(chain)
    return load


def prefix(cached: Any, chain: list[int]) -> int:
    return next((i for i, x in enumerate(chain) if x not in cached), len(chain))


def plain_lru(load: list[list[int]], capacity: int) -> list[int]:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for chain in load:
        chain = chain[:capacity]
        hits.append(prefix(cache, chain))
        missing = [x for x in chain if x not in cache]
        for x in chain:
            cache.pop(x, None)
        while len(cache) + len(chain) > capacity:
            cache.popitem(last=False)
        cache |= dict.fromkeys(reversed(chain))
        assert len(missing) <= capacity >= len(cache)
    return hits


def best(load: list[list[int]], capacity: int) -> int:
    """The most hits that any choice can have, by trying all of them."""
    states = {frozenset[int](): 0}
    for chain in load:
        after: dict[frozenset[int], int] = {}
        for cached, so_far in states.items():
            hits = so_far + prefix(cached, chain)
            there = sorted(cached | set(chain))
            for kept in itertools.combinations(there, min(capacity, len(there))):
                state = frozenset(kept)
                after[state] = max(after.get(state, 0), hits)
        states = after
    return max(states.values())


@pytest.mark.parametrize("seed", range(20))
def test_lru_against_an_ordered_dictionary(seed: int) -> None:
    load = tree_load(seed, 200, 12)
    ids, bounds = chains(load)
    for capacity in (1, 5, 20, 100, 10_000):
        assert exact_lru(ids, bounds, capacity).tolist() == plain_lru(load, capacity)


@pytest.mark.parametrize("seed", range(40))
def test_belady_has_the_most_hits_that_there_are(seed: int) -> None:
    load = tree_load(seed, 8, 4)
    ids, bounds = chains(load)
    for capacity in (1, 2, 4):
        assert exact_belady(ids, bounds, capacity).sum() == best(load, capacity)


@pytest.mark.parametrize("kind", KINDS)
def test_no_policy_beats_belady_and_a_cache_of_everything_hits_all(kind: str) -> None:
    trace = synthetic(kind, 3, 1500)
    everything = trace.accesses - trace.unique
    before = 0
    for share in (0.01, 0.1, 1.0):
        blocks = trace.blocks_of(share)
        most = int(exact_belady(trace.dense, trace.bounds, blocks).sum())
        for policy in (exact_lru, exact_arc):
            assert int(policy(trace.dense, trace.bounds, blocks).sum()) <= most
        assert before <= most <= everything
        before = most
    assert before == everything
    for policy in (exact_lru, exact_arc):
        assert policy(trace.dense, trace.bounds, trace.unique).sum() == everything


@pytest.mark.parametrize("name, blocks, lru, arc, opt", [
    ("mooncake_conversation", 3655, 22865, 9.08, 31.42),
    ("mooncake_conversation", 9139, 56479, 21.01, 36.64),
    ("mooncake_conversation", 18279, 80466, 28.43, 36.64),
    ("mooncake_conversation", 36558, 99632, 32.01, 36.64),
    ("mooncake_synthetic", 878, 9480, 8.26, 26.13),
    ("mooncake_synthetic", 4392, 31973, 26.23, 50.63),
    ("mooncake_synthetic", 8784, 47907, 40.26, 60.80),
])
def test_recorded(name: str, blocks: int, lru: int, arc: float, opt: float) -> None:
    """Numbers of other implementations: LRU's are exact, the others in percent to two digits."""
    trace = recorded(name)
    assert exact_lru(trace.dense, trace.bounds, blocks).sum() == lru
    for policy, expected in ((exact_arc, arc), (exact_belady, opt)):
        found = ratios(trace, policy(trace.dense, trace.bounds, blocks))
        assert 100 * found.block == pytest.approx(expected, abs=0.011)


def test_ratios() -> None:
    trace = synthetic("chat", 1, 50)
    nothing, everything = np.zeros(50, np.int32), trace.lengths.astype(np.int32)
    assert ratios(trace, nothing) == (0, 0, 0)
    assert ratios(trace, everything) == (1, 1, 1)
    first = ratios(trace, np.ones(50, np.int32))
    assert first.block == 50 / trace.accesses
    assert first.token == 50 * 512 / trace.tokens.sum()
    work = sum(1 + 512 * p / 30_500 for n in trace.lengths for p in range(n))
    assert first.compute == pytest.approx(50 / work)


@pytest.mark.parametrize("change", [
    lambda ids, bounds: (ids.astype(np.int64), bounds, 5),
    lambda ids, bounds: (ids - 1, bounds, 5),
    lambda ids, bounds: (ids, bounds + 1, 5),
    lambda ids, bounds: (ids, bounds[::-1].copy(), 5),
    lambda ids, bounds: (ids, bounds, 0),
])
def test_what_makes_no_sense_is_refused(change: Any) -> None:
    with pytest.raises(kvshm.InvalidArgument):
        exact_lru(*change(*chains([[0, 1], [0, 2]])))


def test_nothing_at_all() -> None:
    for policy in (exact_lru, exact_arc, exact_belady):
        assert policy(*chains([]), 3).tolist() == []
        assert policy(*chains([[], [0], []]), 3).tolist() == [0, 0, 0]
