# SPDX-License-Identifier: Apache-2.0
"""Semantics 1-8: allocation is all or nothing."""
import threading

import kvshm
import numpy as np
import pytest
from kvshm import eviction
from support.arenas import content, gauges, keys, start_together, store


@pytest.mark.semantics(1)
def test_s01_a_pool_of_n_gives_n_distinct_blocks_and_no_more(arena):
    fill = arena.allocate(16)
    assert sorted(fill.ids) == list(range(16))
    before = arena.stats()
    assert before.blocks_free == 0 and before.blocks_filling == 16
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(1)
    changed = {name for name, value in arena.stats().items() if value != before[name]}
    assert changed == {"alloc_refused_total", "refused_held_total"}
    fill.abort()
    assert gauges(arena)["free"] == 16


@pytest.mark.semantics(2)
def test_s02_allocating_nothing_succeeds_and_changes_nothing(arena):
    before = arena.stats()
    fill = arena.allocate(0)
    assert len(fill) == 0 and fill.ids.shape == (0,) and fill.handles == []
    lease = fill.register()
    assert len(lease) == 0
    lease.release()
    assert dict(arena.stats()) == dict(before)


@pytest.mark.semantics(3)
def test_s03_one_block_short_is_refused_and_nothing_changes(arena):
    cached = keys(4)
    store(arena, cached).release()
    held = arena.allocate(5)
    before = gauges(arena)
    assert (before["free"], before["inactive"]) == (7, 4)
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(12)
    assert gauges(arena) == before
    assert list(arena.presence(cached)) == [1, 1, 1, 1]
    with arena.match(cached) as hit:
        assert [bytes(hit.view(i)) for i in range(4)] == [content(k) for k in cached]
    # And what was refused by one block is granted without it.
    fill = arena.allocate(11)
    assert len(set(fill.ids) | set(held.ids)) == 16
    assert len(fill.evicted) == 4


@pytest.mark.semantics(4)
def test_s04_free_blocks_first_then_the_evictions_that_are_reported(make_arena):
    arena = make_arena(blocks=5)
    cached = keys(3)
    store(arena, cached, chained=False).release()
    held = arena.match(cached)
    cached_ids = set(held.ids)
    held.release()
    free = set(range(5)) - cached_ids
    fill = arena.allocate(4)
    assert free < set(fill.ids)
    gone = {bytes(key) for key in fill.evicted}
    assert len(gone) == len(fill.evicted) == 2
    still = {bytes(key) for key, mask in zip(cached, arena.presence(cached)) if mask}
    assert gone | still == {bytes(key) for key in cached} and not gone & still


@pytest.mark.semantics(5)
def test_s05_all_or_nothing_across_threads(arena):
    for _ in range(25):
        granted = []
        barrier = threading.Barrier(8)

        def ask():
            barrier.wait(30)
            try:
                fill = arena.allocate(16)
            except kvshm.NoSpace:
                fill = None
            barrier.wait(30)  # hold until all have tried
            if fill is not None:
                granted.append(len(fill))
                fill.abort()

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert granted == [16]
        assert gauges(arena)["free"] == 16


_ASKER = """
    import sys, time, kvshm
    arena = kvshm.Arena.attach(sys.argv[1])
    say("ready")
    while True:
        start = hear()
        while time.monotonic() < start:
            pass
        try:
            fill = arena.allocate(16)
        except kvshm.NoSpace:
            fill = None
        say(0 if fill is None else len(fill))
        hear()
        if fill is not None:
            fill.abort()
        say("given back")
"""


@pytest.mark.semantics(5)
def test_s05_all_or_nothing_across_processes(arena, worker):
    askers = [worker(_ASKER, arena.name) for _ in range(8)]
    assert {one.hear() for one in askers} == {"ready"}
    for _ in range(8):
        start = start_together(2, 0.05)
        for one in askers:
            one.say(start)
        granted = [one.hear() for one in askers]
        assert sorted(granted) == [0] * 7 + [16]
        for one in askers:
            one.say("all have tried")
        for one in askers:
            one.hear()
        assert gauges(arena)["free"] == 16


@pytest.mark.semantics(6)
def test_s06_what_was_not_registered_becomes_free_never_inactive(arena):
    blocks = kvshm.mutable_blocks(arena, 16)
    staged = [block.stage(key) for block, key in zip(blocks[:8], keys(8))]
    assert gauges(arena)["filling"] == 16
    del blocks, staged
    after = arena.stats()
    assert (after.blocks_free, after.blocks_inactive) == (16, 0)
    assert (after.registered_total, after.private_total, after.aborted_total) == (0, 0, 16)
    assert not arena.presence(keys(8)).any()


@pytest.mark.semantics(7)
def test_s07_mixed_fates_of_24_blocks(make_arena):
    arena = make_arena(blocks=24)
    blocks = kvshm.mutable_blocks(arena, 24)
    staged = [block.stage(key) for block, key in zip(blocks[:16], keys(16))]
    registered = kvshm.register_blocks(staged[:8])
    assert gauges(arena)["held"] == 8
    del blocks, staged, registered
    now = gauges(arena)
    assert (now["free"], now["inactive"], now["filling"], now["held"]) == (16, 8, 0, 0)
    fill = arena.allocate(24)  # all 24 are available
    assert len(fill.evicted) == 8


@pytest.mark.semantics(8)
@pytest.mark.parametrize("policy", sorted(eviction.PRESETS))
def test_s08_no_real_policy_promises_more_than_it_yields(arena, policy):
    """A policy cannot make an allocation half succeed; and no preset ever needs a roll-back."""
    eviction.set_policy(arena, policy)
    random = np.random.default_rng(8)
    for round_ in range(200):
        n = int(random.integers(1, 17))
        wanted = keys(n, round_ % 7)
        fill = arena.allocate(n, keys=wanted, announce=False)
        fill.register("reject").release()
    assert arena.stats().evicted_total > 100
    assert arena.stats().rollbacks_total == 0
    assert gauges(arena)["free"] + gauges(arena)["inactive"] == 16


@pytest.mark.semantics(8)
def test_s08_marks_that_promise_too_much_leave_no_trace(arena):
    """16 victims are marked, 4 of them are held by the time: refused, and all is as before.

    The roll-back that counts, with rivals taking what a policy chose, is shown in C++.
    """
    cached = keys(16)
    store(arena, cached, chained=False).release()
    assert eviction.mark_victims(arena, 16) == 16
    with arena.match_scattered(cached[::4]) as hit:
        assert hit.hits == 4
        before = gauges(arena)
        with pytest.raises(kvshm.NoSpace):
            arena.allocate(16)
        assert gauges(arena) == before
        assert arena.presence(cached).all()
        assert len(arena.allocate(12).evicted) == 12
