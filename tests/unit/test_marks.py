# SPDX-License-Identifier: Apache-2.0
"""kvshm.eviction: victims marked beforehand, the block table, watermarks."""
import time

import kvshm
import numpy as np
import pytest
from kvshm import eviction
from support.arenas import content, gauges, keys, store


def taken(arena, n):
    """Keys in the order in which n allocations of one block push them out."""
    held, order = [], []
    for _ in range(n):
        held.append(arena.allocate(1))
        order += [bytes(key) for key in held[-1].evicted]
    for fill in held:
        fill.abort()
    return order


def roots(arena, n=16, seed=31):
    wanted = keys(n, seed)
    for key in wanted:
        store(arena, [key]).release()
    return [bytes(key) for key in wanted]


def test_marked_blocks_go_first_and_in_their_order(arena):
    there = roots(arena)
    favourite = [there[i] for i in (9, 3, 12)]

    def score(table, now):
        scores = np.full(len(table), -1.0)
        for rank, key in enumerate(favourite):
            halves = np.frombuffer(key, np.uint64)
            scores[(table["key"] == halves).all(axis=1)] = 10 - rank
        return scores

    assert eviction.mark_victims(arena, 5, score) == 3  # nobody else scored 0 or more
    assert eviction.marks_left(arena) == 3
    assert taken(arena, 3) == favourite
    assert eviction.marks_left(arena) == 0


def test_the_block_table_is_the_arena_as_it_is(arena):
    chain = keys(3, seed=32)
    lease = store(arena, chain)
    table = eviction.block_table(arena)
    assert table.shape == (16,) and table.dtype == eviction.BLOCK_DTYPE
    assert not table.flags.writeable
    for i, handle in enumerate(lease.handles):
        info, record = arena.block(handle.id), table[handle.id]
        assert record["key"].tobytes() == info.key == bytes(chain[i])
        for name in ("seq", "parent", "child", "stamp", "priority", "flags", "tenant"):
            assert record[name] == getattr(info, name), name
        assert record["word"] >> 48 & 7 == kvshm.State.READY == info.state
        assert record["word"] & 2**48 - 1 == info.holders == 1 << arena.slot
        assert record["freq_depth"] >> 8 == info.depth == i
    lease.release()
    assert table[lease.ids[0]]["word"] & 2**48 - 1 == 0  # live, not a copy
    with pytest.raises(BufferError):
        arena.close()
    del table, record
    arena.close()


@pytest.mark.parametrize("scorer", ["lru", "lfu", "freqage"])
def test_a_chain_is_marked_leaf_first(arena, scorer):
    chain = keys(12, seed=33)
    store(arena, chain).release()
    assert eviction.mark_victims(arena, 12, scorer) == 12
    assert taken(arena, 16) == [bytes(key) for key in chain[::-1]]


def test_a_parent_is_not_marked_before_its_child_whatever_the_scorer_says(arena):
    """A scorer that wants the root first gets it last."""
    chain = keys(8, seed=34)
    store(arena, chain).release()

    def root_first(table, now):
        return 100.0 - (table["freq_depth"] >> 8)

    assert eviction.mark_victims(arena, 3, root_first) == 3
    assert taken(arena, 11)[-3:] == [bytes(key) for key in chain[:-4:-1]]


def test_no_block_with_a_cached_child_is_marked(arena):
    """The child is held, so it is no victim, and its parents are none either."""
    chain = keys(6, seed=35)
    store(arena, chain).release()
    with arena.match_scattered(chain[3:4]):
        assert eviction.mark_victims(arena, 16) == 2  # only what lies behind it
    eviction.set_policy(arena, "lru")
    order = taken(arena, 12)
    assert order[-2:] == [bytes(chain[5]), bytes(chain[4])]
    assert eviction.mark_victims(arena, 16) == 4


def test_two_children_keep_their_parent(arena):
    stem = keys(2, seed=36)
    lease = store(arena, stem)
    twigs = [keys(2, seed=37 + i) for i in range(2)]
    for twig in twigs:
        store(arena, twig, after=lease).release()
    lease.release()
    assert eviction.mark_victims(arena, 16) == 6
    order = taken(arena, 16)
    at = {key: place for place, key in enumerate(order)}
    for twig in twigs:
        assert at[bytes(twig[1])] < at[bytes(twig[0])] < at[bytes(stem[1])] < at[bytes(stem[0])]


def test_a_mark_is_void_when_its_block_was_used_or_has_another_life(arena):
    there = roots(arena, 4)
    assert eviction.mark_victims(arena, 4) == 4
    held = arena.match([there[0]])
    arena.evict([there[1]])
    store(arena, [there[1]]).release()  # the same key, perhaps the same block, another life
    fill = arena.allocate(12)  # all that is free
    assert taken(arena, 1) == [there[2]]
    assert arena.presence([there[0], there[1]]).all()
    assert bytes(held.view(0)) == content(there[0])
    fill.abort()


def test_priority_100_is_never_marked(arena):
    there = roots(arena, 3)
    with arena.match([there[1]]) as lease:
        arena.set_priority(lease.handle(0), 100)
    assert eviction.mark_victims(arena, 16) == 2
    fill = arena.allocate(13)
    assert taken(arena, 2) == [there[0], there[2]]
    fill.abort()


@pytest.mark.parametrize("scorer, first", [("lru", 0), ("lfu", 1)])
def test_built_in_scorers(arena, scorer, first):
    a, b = roots(arena, 2)
    for _ in range(5):
        arena.match([a]).release()
    arena.match([b], touch=False).release()  # a: often used, b: used last
    fill = arena.allocate(14)
    assert eviction.mark_victims(arena, 1, scorer) == 1
    assert taken(arena, 1) == [[a, b][first]]
    fill.abort()


def test_scores_that_make_no_sense(arena):
    roots(arena)
    assert eviction.mark_victims(arena, 16, lambda table, now: table["stamp"] * np.nan) == 0
    assert eviction.mark_victims(arena, 0) == 0
    assert eviction.mark_victims(arena, 3, lambda table, now: [np.inf] * 16) == 3
    for wrong in (lambda table, now: [1.0], lambda table, now: np.zeros((16, 2)), "optimal", None):
        with pytest.raises(kvshm.InvalidArgument):
            eviction.mark_victims(arena, 1, wrong)
    with pytest.raises(ZeroDivisionError):
        eviction.mark_victims(arena, 1, lambda table, now: 1 / 0)
    with pytest.raises(kvshm.InvalidArgument):
        eviction.mark_victims(arena, -1)


def test_a_scorer_sees_ages(arena):
    there = roots(arena, 3)
    seen = []

    def note(table, now):
        ages = (now - table["stamp"]).astype(np.uint32)
        for key in there:
            seen.append(int(ages[(table["key"] == np.frombuffer(key, np.uint64)).all(axis=1)][0]))
        return np.zeros(len(table))

    eviction.mark_victims(arena, 1, note)
    assert seen[0] > seen[1] > seen[2] == 0


def test_watermarks(arena):
    roots(arena, 16)
    marker = eviction.Marker(arena, low=0.25, high=0.5)
    assert (marker.low, marker.high) == (4, 8)
    first = marker.run_once()
    assert first == (0, 0, 8, 8)
    assert marker.run_once() == (0, 8, 0, 0)  # enough
    held = arena.allocate(5)
    assert eviction.marks_left(arena) == 3
    assert marker.run_once() == (0, 3, 5, 5)
    held.abort()
    assert marker.run_once() == (5, 8, 0, 0)


def test_marks_are_not_made_twice(arena):
    """Topping up names others than those that still stand among the marks."""
    there = roots(arena, 16)

    def youngest(table, now):  # what the arena's own policy would never take
        return 1e6 - (now - table["stamp"]).astype(np.uint32)

    marker = eviction.Marker(arena, low=12, high=12, policy=youngest)
    assert marker.run_once().marked == 12
    held = arena.allocate(2)
    assert {bytes(key) for key in held.evicted} == set(there[14:])
    assert marker.run_once().marked == 2
    more = arena.allocate(12)
    assert {bytes(key) for key in more.evicted} == set(there[2:14])


def test_a_mark_taken_in_vain_can_be_made_again(arena):
    there = roots(arena, 2)
    marker = eviction.Marker(arena, low=16, high=16)
    held = arena.match([there[0]])
    assert marker.run_once() == (14, 0, 2, 1)
    again = arena.match([there[1]])
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(15)  # takes the mark, and finds its block in use
    again.release(), held.release()
    assert marker.run_once() == (14, 0, 2, 2)


def test_refused_watermarks(arena):
    for low, high in ((5, 4), (-1, 4), (0, 17), (0.5, 1.5)):
        with pytest.raises(kvshm.InvalidArgument):
            eviction.Marker(arena, low, high)


def test_marks_serve_the_other_processes(arena, worker):
    there = roots(arena)
    other = worker("""
        import sys, kvshm
        arena = kvshm.Arena.attach(sys.argv[1])
        hear()
        say([bytes(key).hex() for key in arena.allocate(2).evicted])
    """, arena.name)
    wanted = there[11], there[5]

    def score(table, now):
        scores = np.full(len(table), -1.0)
        for rank, key in enumerate(wanted):
            scores[(table["key"] == np.frombuffer(key, np.uint64)).all(axis=1)] = 2 - rank
        return scores

    eviction.mark_victims(arena, 2, score)
    assert [bytes.fromhex(key) for key in other.ask("go")] == list(wanted)


def test_marking_a_large_arena_is_quick(make_arena):
    arena = make_arena(blocks=200_000, block_bytes=64)
    many = keys(2000, seed=40)
    for i in range(0, 2000, 100):
        store(arena, many[i:i + 100]).release()
    start = time.perf_counter()
    assert eviction.mark_victims(arena, 1000) == 1000
    assert time.perf_counter() - start < 1.0
    assert gauges(arena)["inactive"] == 2000
