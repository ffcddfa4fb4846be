# SPDX-License-Identifier: Apache-2.0
"""Semantics 33, 35, 36, 38: chains and collisions. The order is exact for pools of up to 64
evictable blocks, where the policy looks at all of them. 34, 37, 39: test_semantics_policies."""
import resource

import kvshm
import numpy as np
import pytest
from kvshm import eviction
from support.arenas import content, evicted_one_by_one, gauges, keys, store


@pytest.mark.semantics(33)
@pytest.mark.parametrize("policy", ["lru", "clock", "freqage"])
@pytest.mark.parametrize("released", ["root first", "leaf first", "shuffled"])
def test_s33_a_chain_goes_leaf_first_however_it_was_released(make_arena, policy, released):
    arena = make_arena(blocks=24)
    eviction.set_policy(arena, policy)
    chain = keys(24, seed=33)
    store(arena, chain).release()
    guards = kvshm.match_blocks(arena, chain)
    if released == "leaf first":
        guards.reverse()
    elif released == "shuffled":
        np.random.default_rng(33).shuffle(guards)
    for one in guards:
        one.release()
    assert gauges(arena)["inactive"] == 24
    assert evicted_one_by_one(arena, 24) == [bytes(key) for key in chain[::-1]]


@pytest.mark.semantics(33)
def test_s33_blocks_registered_out_of_order(make_arena):
    """A child that is registered before its parent goes before it, too."""
    arena = make_arena(blocks=6)
    eviction.set_policy(arena, "lru")
    chain = keys(6, seed=34)
    fills = [arena.allocate(1, keys=chain[:1])]
    for i in range(1, 6):
        fills.append(arena.allocate(1, keys=chain[i:i + 1], after=fills[-1].handles[0]))
    leases = [fill.register() for fill in reversed(fills)]
    for lease in leases:
        lease.release()
    assert evicted_one_by_one(arena, 6) == [bytes(key) for key in chain[::-1]]


@pytest.mark.semantics(35)
def test_s35_children_of_a_removed_block_can_still_be_found(arena):
    chain = keys(5, seed=35)
    store(arena, chain).release()
    assert arena.evict(chain[2:3]) == 1
    assert list(arena.presence(chain)) == [1, 1, 0, 1, 1]
    with arena.match(chain) as hit:
        assert len(hit) == 2
    with arena.match_scattered(chain[3:]) as hit:
        assert [bytes(hit.view(i)) for i in (0, 1)] == [content(k) for k in chain[3:]]
    store(arena, chain[2:3]).release()
    with arena.match(chain) as hit:
        assert len(hit) == 5


@pytest.mark.semantics(35)
def test_s35_a_million_lives_leave_nothing_behind(make_arena):
    arena = make_arena(blocks=128, block_bytes=64)
    batch = 64
    base = keys(batch, seed=36)

    def cycle(i):
        wanted = base ^ np.frombuffer(int(i).to_bytes(8, "little") * 2, np.uint8)
        arena.allocate(batch, keys=wanted).register().release()
        assert arena.evict(wanted[::-1]) == batch

    rounds = 1_000_000 // batch + 1
    for i in range(100):
        cycle(i)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(100, rounds):
        cycle(i)
    assert arena.stats().removed_total >= 1_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB
    assert gauges(arena)["free"] == 128
    assert {arena.block(i).child for i in range(128)} <= {kvshm.NONE, *range(128)}
    # Slots and index entries are recycled: a full house goes in, and is found.
    full = keys(128, seed=37)
    arena.allocate(128, keys=full).register().release()
    with arena.match(full) as hit:
        assert len(hit) == 128


@pytest.mark.semantics(36)
@pytest.mark.parametrize("how", ["clear", "allocate", "evict root", "evict keys"])
def test_s36_a_chain_of_1000_goes_without_recursion(make_arena, how):
    arena = make_arena(blocks=1000, block_bytes=64)
    chain = keys(1000, seed=36)
    store(arena, chain).release()
    if how == "clear":
        assert arena.clear() == 1000
    elif how == "allocate":
        fill = arena.allocate(1000)
        assert len(fill.evicted) == 1000
        fill.abort()
    elif how == "evict root":
        assert arena.evict(chain[:1]) == 1
        assert arena.clear() == 999
    else:
        assert arena.evict(chain) == 1000
    assert gauges(arena)["free"] == 1000 and not arena.presence(chain).any()


def colliding(n):
    """Keys of one pair of buckets and one tag: the same first half, second halves that differ in
    their lowest bits only."""
    out = np.zeros((n, 16), np.uint8)
    for i in range(n):
        out[i] = np.frombuffer((0x123456789abcdef0).to_bytes(8, "little")
                               + (0xfedcba9800000000 + i).to_bytes(8, "little"), np.uint8)
    return out


@pytest.mark.semantics(38)
def test_s38_keys_that_share_the_index_bits_are_told_apart(arena):
    a, b, absent = colliding(3)
    store(arena, [a]).release()
    assert not arena.presence([b])[0] and len(arena.match([b])) == 0
    store(arena, [b]).release()
    with arena.match_scattered([a, b, absent]) as hit:
        assert hit.ids[0] != hit.ids[1] and hit.ids[2] == kvshm.NONE
        assert [bytes(hit.view(i)) for i in (0, 1)] == [content(a), content(b)]
    assert arena.evict([absent]) == 0
    assert arena.evict([a]) == 1
    assert list(arena.presence([a, b])) == [0, 1]
    with arena.match([b]) as hit:
        assert bytes(hit.view(0)) == content(b)


@pytest.mark.semantics(38)
def test_s38_more_colliding_keys_than_a_bucket_holds(make_arena):
    """Where no index entry is free the block stays private: a miss, never a wrong block."""
    arena = make_arena(blocks=64)
    many = colliding(40)
    leases = [store(arena, many[i:i + 1]) for i in range(40)]
    results = [int(lease.results[0]) for lease in leases]
    assert set(results) <= {kvshm.Status.PRIMARY, kvshm.Status.PRIVATE}
    found = 0
    for key, lease, result in zip(many, leases, results):
        assert bytes(lease.view(0)) == content(key)
        with arena.match([key]) as hit:
            assert len(hit) == (result == kvshm.Status.PRIMARY)
            found += len(hit)
            if hit:
                assert hit.ids[0] == lease.ids[0]
    assert 8 <= found < 40
