# SPDX-License-Identifier: Apache-2.0
"""Semantics 40 and 43: resets and gauges."""
import kvshm
import pytest
from support.arenas import content, gauges, keys, store


@pytest.mark.semantics(40)
def test_s40_a_reset_of_an_idle_arena_frees_everything(arena):
    wanted = keys(10, seed=40)
    store(arena, wanted).release()
    arena.reset_inactive()
    assert gauges(arena)["free"] == 16 and not arena.presence(wanted).any()
    assert len(arena.match(wanted)) == 0
    assert len(arena.allocate(16).evicted) == 0


@pytest.mark.semantics(40)
def test_s40_a_reset_with_a_block_held_says_so_and_harms_nothing(arena):
    wanted = keys(10, seed=40)
    store(arena, wanted).release()
    with arena.match(wanted[:1]) as hit:
        with pytest.raises(kvshm.Busy) as refused:
            arena.reset_inactive()
        assert (refused.value.expected, refused.value.actual) == (16, 15)
        assert "16" in str(refused.value) and "15" in str(refused.value)
        assert bytes(hit.view(0)) == content(wanted[0])
        with arena.match(wanted[:1]) as again:
            assert list(again.ids) == list(hit.ids)
    arena.reset_inactive()
    assert gauges(arena)["free"] == 16


_BUSY = """
    import sys, kvshm, numpy as np
    from support.arenas import keys, store
    arena = kvshm.Arena.attach(sys.argv[1])
    seed = int(sys.argv[2])
    random = np.random.default_rng(seed)
    kept = []
    say("ready")
    while True:
        hear()
        kept.clear()
        for _ in range(60):
            wanted = keys(int(random.integers(1, 9)), int(random.integers(0, 12)))
            hit = arena.match(wanted)
            try:
                fill = arena.allocate(len(wanted) - len(hit), keys=wanted[len(hit):], after=hit)
            except kvshm.NoSpace:
                kept.clear()
                continue
            kept.append(hit)
            kept.append(fill if random.integers(3) == 0 else fill.register())
            del kept[:-6]
        filling = sum(len(k) for k in kept if isinstance(k, kvshm.Fill) and k.active)
        say(filling)
"""


@pytest.mark.semantics(43)
def test_s43_the_gauges_add_up_at_every_quiet_point(make_arena, worker, tests_path):
    arena = make_arena(blocks=96)
    busy = [worker(_BUSY, arena.name, seed, env=tests_path) for seed in range(4)]
    for one in busy:
        assert one.hear() == "ready"
    for _ in range(6):
        for one in busy:
            one.say("work")
        filling = sum(one.hear() for one in busy)
        now = gauges(arena)
        assert now["evicting"] == 0 and now["filling"] == filling
        assert now["free"] + now["inactive"] + now["held"] + now["filling"] == now["total"] == 96
        assert arena.is_valid() == []
    for one in busy:
        one.kill()
    arena.reap()
    now = gauges(arena)
    assert now["held"] == now["filling"] == 0
    assert now["free"] + now["inactive"] == 96
