# SPDX-License-Identifier: Apache-2.0
"""kvshm.eviction: policy tables."""
from dataclasses import replace

import kvshm
import pytest
from kvshm import eviction
from kvshm.eviction import adaptive
from kvshm.eviction.policies import weighted
from kvshm.tools.cli.arenas import open_view
from support.arenas import keys, store


def test_a_new_arena_has_the_adaptive_policy(arena):
    policy = eviction.get_policy(arena)
    assert policy == replace(eviction.PRESETS["adaptive"], version=policy.version)
    assert policy.memory and policy.touches and policy.shift[2] == 2 and policy.rank == (0,) * 16


@pytest.mark.parametrize("name", sorted(eviction.PRESETS))
def test_presets_reach_every_process(arena, worker, name):
    other = worker("""
        import sys, kvshm
        from kvshm import eviction
        arena = kvshm.Arena.attach(sys.argv[1])
        hear()
        p = eviction.get_policy(arena)
        say(repr(p))
    """, arena.name)
    before = eviction.get_policy(arena).version
    now = eviction.set_policy(arena, name)
    assert now.version > before
    assert now == replace(eviction.PRESETS[name], version=now.version)
    assert other.ask("look") == repr(now)


def test_who_goes_back_to_adaptive_gets_the_weight_in_force(make_arena):
    """The table that an operator set is replaced by what was learnt, once there is a next record;
    another policy stays as it is."""
    arena = make_arena(blocks=64, block_bytes=64)
    some = keys(8, seed=23)
    store(arena, some).release()
    adaptive.step(arena)
    with open_view(arena.name, None) as seen:
        before = int(seen.shadow["weight"])
    eviction.set_policy(arena, replace(eviction.PRESETS["lru"], touches=True))
    arena.match(some).release()
    assert adaptive.step(arena) == 8
    assert eviction.get_policy(arena).name == "lru"
    eviction.set_policy(arena, replace(eviction.PRESETS["adaptive"], sample=5))
    arena.match(some).release()
    assert adaptive.step(arena) == 8
    now = eviction.get_policy(arena)
    assert now == replace(weighted(before), version=now.version)
    version = now.version
    arena.match(some).release()
    adaptive.step(arena)
    assert eviction.get_policy(arena).version == version  # nothing to mend


def test_a_table_of_ones_own(arena):
    mine = eviction.Policy("mine", shift=range(16), sample=64, age_period=0)
    now = eviction.set_policy(arena, mine)
    assert (now.name, now.shift, now.sample, now.age_period) == ("mine", tuple(range(16)), 64, 0)
    again = eviction.set_policy(arena, "lru")
    assert again.version > now.version


@pytest.mark.parametrize("wrong", [
    {"name": ""}, {"name": "x" * 32}, {"name": "né"}, {"shift": (0,) * 15}, {"shift": [32] * 16},
    {"shift": [-1] * 16}, {"sample": 0}, {"sample": 65}, {"age_period": -1},
    {"rank": [101] * 16}, {"rank": (0,) * 17}, {"young": 1024}, {"small": -1}], ids=str)
def test_refused_tables(wrong):
    with pytest.raises(kvshm.InvalidArgument):
        eviction.Policy(**{"name": "p", **wrong})


def test_unknown_presets(arena):
    with pytest.raises(kvshm.InvalidArgument, match="freqage"):
        eviction.set_policy(arena, "optimal")


def test_levels():
    assert eviction.levels((2, 1), (6, 2), (15, 3)) == (0, 0, 1, 1, 1, 1, *[2] * 9, 3)
    assert eviction.levels() == (0,) * 16


def full_of_roots(arena):
    """16 roots, released in order; the first half was used ten times more, long ago."""
    roots = keys(16, seed=21)
    for root in roots:
        store(arena, [root], chained=False).release()
    for _ in range(10):
        for root in roots[:8]:
            arena.match([root]).release()
    for root in roots[8:]:
        arena.match([root], touch=False).release()  # younger by release, not by use
    return [bytes(root) for root in roots]


@pytest.mark.parametrize("policy, often_used_go", [("lru", "first"), ("lfu", "last")])
def test_what_a_table_decides(make_arena, policy, often_used_go):
    """The same past, two tables, the opposite order."""
    arena = make_arena()
    eviction.set_policy(arena, policy)
    roots = full_of_roots(arena)
    held, order = [], []
    for _ in range(7):
        held.append(arena.allocate(1))
        order += [bytes(key) for key in held[-1].evicted]
    assert order == (roots[:7] if often_used_go == "first" else roots[8:15])


@pytest.mark.parametrize("head_start, survives", [(0, True), (400, False)])
def test_freqage_weighs_age_against_use(make_arena, head_start, survives):
    """A block used often may be 8 times as old as one used once, not 30 times."""
    arena = make_arena(blocks=3)
    eviction.set_policy(arena, "freqage")
    often, once, clock = keys(3, seed=22)
    store(arena, [clock]).release()
    store(arena, [often]).release()
    for _ in range(20):
        arena.match([often]).release()

    def pass_time(releases):
        for _ in range(releases):
            arena.match([clock], touch=False).release()

    pass_time(head_start)
    store(arena, [once]).release()
    pass_time(12)
    with arena.allocate(1) as fill:
        assert [bytes(key) for key in fill.evicted] == [bytes(once if survives else often)]
