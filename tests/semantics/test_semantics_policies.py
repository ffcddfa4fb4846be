# SPDX-License-Identifier: Apache-2.0
"""Semantics 34, 37, 39: what each policy's table does, exact for pools of up to 64 evictable
blocks. And tables changed under way."""
import select
from dataclasses import replace

import numpy as np
import pytest
from kvshm import eviction
from support.arenas import evicted_one_by_one, gauges, keys, store


@pytest.mark.semantics(34)
@pytest.mark.parametrize("policy, expected", [("lineage", "a1 a0 b1 b0"),
                                              ("lineage-fifo", "a1 b1 a0 b0")])
def test_s34_two_chains(make_arena, policy, expected):
    arena = make_arena(blocks=4)
    eviction.set_policy(arena, policy)
    a, b = keys(2, seed=34), keys(2, seed=35)
    chains = [store(arena, a), store(arena, b)]
    for lease in chains:
        lease.release()
    names = {bytes(key): name for key, name in zip([*a, *b], ("a0", "a1", "b0", "b1"))}
    assert [names[key] for key in evicted_one_by_one(arena, 4)] == expected.split()


def use(arena, key, times):
    for _ in range(times):
        with arena.match([key]) as hit:
            assert len(hit) == 1


def tiers(arena):
    """8 roots with 1, 3, 8, 15 uses, two each, the often used ones the longest ago."""
    roots = keys(8, seed=37)
    for count, at in ((15, 6), (8, 4), (3, 2), (1, 0)):
        for key in roots[at:at + 2]:
            store(arena, [key]).release()
            use(arena, key, count - 1)
    return roots


@pytest.mark.semantics(37)
@pytest.mark.parametrize("sketch", [False, True])
def test_s37_all_of_a_tier_go_before_any_of_the_next(make_arena, sketch):
    arena = make_arena(blocks=8)
    eviction.set_policy(arena, replace(eviction.multi_lru(3, 8, 15, sketch=sketch), age_period=0))
    roots = tiers(arena)
    assert evicted_one_by_one(arena, 8) == [bytes(key) for key in roots]


@pytest.mark.semantics(37)
@pytest.mark.parametrize("count, place", [(2, 2), (3, 4), (7, 4), (8, 6), (14, 6), (15, 8)])
def test_s37_a_tier_begins_at_its_number_of_uses(make_arena, count, place):
    """A block is the youngest of the tier that its last use brought it into."""
    arena = make_arena(blocks=9)
    eviction.set_policy(arena, replace(eviction.multi_lru(), age_period=0))
    roots = tiers(arena)
    extra = keys(1, seed=370)[0]
    store(arena, [extra]).release()
    use(arena, extra, count - 1)
    order = [bytes(key) for key in roots]
    order.insert(place, bytes(extra))
    assert evicted_one_by_one(arena, 9) == order


@pytest.mark.semantics(37)
@pytest.mark.parametrize("count", [1, 3, 8, 15])
def test_s37_all_blocks_in_one_tier(make_arena, count):
    arena = make_arena(blocks=256, block_bytes=64)
    eviction.set_policy(arena, "multi_lru")
    roots = keys(256, seed=38)
    arena.allocate(256, keys=roots, chained=False).register().release()
    for _ in range(count - 1):
        with arena.match_scattered(roots) as hit:
            assert hit.hits == 256
    for n in (1, 255, 256):
        with arena.allocate(n) as fill:
            assert len(fill) == n


def frequency(arena, key):
    """Uses before this life of the block's, and in it, but for its storing; without using it."""
    with arena.match([key], touch=False) as hit:
        return arena.block(int(hit.ids[0])).frequency


@pytest.mark.semantics(39)
@pytest.mark.parametrize("sketch", [False, True])
@pytest.mark.parametrize("halvings", [0, 1])
def test_s39_a_key_that_comes_back_is_worth_what_it_was(make_arena, sketch, halvings):
    """k uses, evicted, stored again: they count; half of them for each ageing in between."""
    arena = make_arena(blocks=64)
    period = 10
    eviction.set_policy(arena, replace(eviction.multi_lru(sketch=sketch), age_period=period))
    counts = (2, 4, 7, 14)
    roots = keys(len(counts), seed=39)
    for key, k in zip(roots, counts):
        store(arena, [key]).release()
        use(arena, key, k - 1)
        assert frequency(arena, key) == k - 1
    with arena.allocate(64) as fill:  # an eviction, not a removal: what is removed is forgotten
        assert len(fill.evicted) == len(counts)
    clock = keys(1, seed=390)[0]
    store(arena, [clock]).release()
    for _ in range(halvings * period * 64):
        arena.match([clock], touch=False).release()
    arena.allocate(64).abort()  # who evicts looks at the time
    for key, k in zip(roots, counts):
        store(arena, [key]).release()
        assert frequency(arena, key) == k >> halvings


SWITCHER = """
    import sys, time, kvshm
    from kvshm import eviction
    arena = kvshm.Arena.attach(sys.argv[1])
    say("ready")
    n, end = 0, time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        eviction.set_policy(arena, sorted(eviction.PRESETS)[n % len(eviction.PRESETS)])
        n += 1
        time.sleep(0.002)
    say(n)
    hear()
"""


def test_policies_change_while_others_store_and_match(make_arena, worker):
    arena = make_arena(blocks=512, block_bytes=64)
    other = worker(SWITCHER, arena.name, 2.0)
    assert other.hear() == "ready"
    chance = np.random.default_rng(4)
    chains = [keys(16, seed=400 + i) for i in range(96)]
    seen, switches, rounds = set(), None, 0
    while switches is None:
        chain = chains[min(int(chance.zipf(1.3)), len(chains)) - 1]
        with arena.match(chain) as hit:
            have = len(hit)
            for i in range(have):
                assert bytes(hit.view(i)) == bytes(chain[i]) * 4
            if have < 16:
                store(arena, chain[have:],
                      **({"after": hit.handle(have - 1)} if have else {})).release()
        rounds += 1
        if rounds % 50 == 0:
            seen.add(eviction.get_policy(arena).name)
            if select.select([other.process.stdout], [], [], 0)[0]:
                switches = other.hear()
    assert switches > 100 and rounds > 500 and len(seen) > 5, (switches, rounds, seen)
    assert arena.is_valid() == []
    assert arena.stats().evicted_total > 1000
    assert gauges(arena)["held"] == gauges(arena)["filling"] == 0
