# SPDX-License-Identifier: Apache-2.0
"""Semantics 12-17: registration and blocks of the same key."""
import kvshm
import numpy as np
import pytest
from support.arenas import content, gauges, keys, start_together, store

ONE = keys(1, seed=12)
KEY = ONE[0]


def complete(arena, key=KEY):
    block, = kvshm.mutable_blocks(arena)
    return block.stage(key, payload=content(key))


@pytest.mark.semantics(12)
def test_s12_allow_keeps_a_second_block_beside_the_first(arena):
    primary = complete(arena).register("allow")
    duplicate = complete(arena).register("allow")
    assert primary.id != duplicate.id
    assert (primary.status, duplicate.status) == (kvshm.Status.PRIMARY, kvshm.Status.DUPLICATE)
    assert arena.stats().duplicates_total == 1
    assert gauges(arena)["free"] == 14
    duplicate.release()
    assert gauges(arena)["free"] == 15  # at once
    with arena.match(ONE) as hit:
        assert list(hit.ids) == [primary.id]
        assert bytes(hit.view(0)) == content(KEY)


@pytest.mark.semantics(13)
def test_s13_reject_gives_the_first_block_and_frees_the_second(arena):
    first = complete(arena).register("reject")
    second = complete(arena)
    assert gauges(arena)["free"] == 14
    got = second.register("reject")
    assert got.id == first.id and got.status == kvshm.Status.PRESENT
    assert gauges(arena)["free"] == 15
    stats = arena.stats()
    assert (stats.rejected_total, stats.duplicates_total) == (1, 0)
    first.release()
    assert gauges(arena)["held"] == 1  # the second caller holds it for itself
    got.release()
    assert gauges(arena)["inactive"] == 1


@pytest.mark.semantics(14)
def test_s14_a_living_duplicate_keeps_the_primary_from_being_evicted(arena):
    primary = complete(arena).register()
    duplicate = complete(arena).register()
    primary_id = primary.id
    primary.release()
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(15)
    fill = arena.allocate(14)
    assert primary_id not in fill.ids and len(fill.evicted) == 0
    assert arena.evict(ONE) == 0
    assert arena.presence(ONE)[0] == kvshm.Presence.G2
    fill.abort()
    duplicate.release()
    assert arena.evict(ONE) == 1


@pytest.mark.semantics(15)
@pytest.mark.parametrize("policy", ["allow", "reject"])
def test_s15_a_batch_keeps_its_order_and_meets_itself(arena, policy):
    a, b, c = keys(3, seed=15)
    blocks = [complete(arena, key) for key in (a, b, a, c)]
    ids = [block.id for block in blocks]
    done = kvshm.register_blocks(blocks, policy)
    got = [block.id for block in done]
    if policy == "allow":
        assert got == ids
        assert [int(block.status) for block in done] == [5, 5, 6, 5]
        assert arena.stats().duplicates_total == 1
    else:
        assert got == [ids[0], ids[1], ids[0], ids[3]]
        assert [int(block.status) for block in done] == [5, 5, 7, 5]
        assert gauges(arena)["free"] == 13


@pytest.mark.semantics(15)
@pytest.mark.parametrize("policy", ["allow", "reject"])
def test_s15_the_same_for_a_fill(arena, policy):
    a, b, c = keys(3, seed=15)
    batch = np.array([a, b, a, c])
    fill = arena.allocate(4, keys=batch, announce=False, chained=False)
    ids = list(fill.ids)
    lease = fill.register(policy)
    if policy == "reject":
        ids[2] = ids[0]
    assert list(lease.ids) == ids
    assert list(lease.results) == [5, 5, 6 if policy == "allow" else 7, 5]
    assert lease.hits == 4
    lease.release()
    assert gauges(arena)["inactive"] == 3 and gauges(arena)["free"] == 13


@pytest.mark.semantics(16)
@pytest.mark.parametrize("policy", ["allow", "reject"])
def test_s16_registering_a_cached_key_holds_the_cached_block(arena, policy):
    store(arena, ONE).release()
    with arena.match(ONE) as hit:
        cached = int(hit.ids[0])
    assert gauges(arena)["inactive"] == 1
    got = complete(arena).register(policy)
    assert gauges(arena)["inactive"] == 0  # held, by whichever way
    assert (got.id == cached) == (policy == "reject")
    rest = gauges(arena)["free"]
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(rest + 1)
    assert arena.presence(ONE)[0] == kvshm.Presence.G2
    with arena.match(ONE) as hit:
        assert list(hit.ids) == [cached]


_REGISTRAR = """
    import sys, time, kvshm
    from support.arenas import content
    import numpy as np
    arena = kvshm.Arena.attach(sys.argv[1])
    say("ready")
    while True:
        key, start, policy = hear()
        key = bytes.fromhex(key)
        fill = arena.allocate(1)
        fill.view(0)[:] = content(key)
        while time.monotonic() < start:
            pass
        lease = fill.register(policy, keys=[key])
        say([int(lease.ids[0]), int(lease.results[0]), bytes(lease.view(0)) == content(key)])
        hear()
        lease.release()
        say("released")
"""


@pytest.mark.semantics(17)
@pytest.mark.parametrize("policy", ["allow", "reject"])
def test_s17_two_processes_register_one_key_at_one_instant(arena, worker, policy, tests_path):
    pair = [worker(_REGISTRAR, arena.name, env=tests_path) for _ in range(2)]
    assert [one.hear() for one in pair] == ["ready", "ready"]
    for round_ in range(40):
        wanted = keys(1, seed=1700 + round_)
        start = start_together(0, 0.01)
        for one in pair:
            one.say([wanted[0].tobytes().hex(), start, policy])
        (id1, result1, good1), (id2, result2, good2) = (one.hear() for one in pair)
        assert good1 and good2
        first, second = sorted((result1, result2))
        # While the other one's block is still FILLING there is nothing to hand out: a duplicate.
        assert first == 5 and second in ((6,) if policy == "allow" else (6, 7))
        assert (id1 == id2) == (second == 7)
        with arena.match(wanted) as hit:
            assert list(hit.ids) == [id1 if result1 == 5 else id2]
            assert bytes(hit.view(0)) == content(wanted[0])
        for one in pair:
            one.say("go on")
        for one in pair:
            one.hear()
        assert gauges(arena)["held"] == 0
        assert arena.is_valid() == []
