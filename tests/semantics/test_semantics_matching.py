# SPDX-License-Identifier: Apache-2.0
"""Semantics 18-25: matching, weak handles, pins."""
import kvshm
import pytest
from support.arenas import content, gauges, keys, store


@pytest.mark.semantics(18)
def test_s18_a_prefix_is_matched_whatever_its_blocks_are(arena):
    wanted = keys(3)
    store(arena, wanted).release()
    with arena.match_scattered([wanted[0], wanted[2]]):  # active, inactive, active
        assert (gauges(arena)["held"], gauges(arena)["inactive"]) == (2, 1)
        with arena.match(wanted) as hit:
            assert len(hit) == 3
            assert [bytes(hit.view(i)) for i in range(3)] == [content(k) for k in wanted]
    for k in range(3):
        arena.evict([wanted[k]])
        with arena.match(wanted) as hit:
            assert len(hit) == k
        store(arena, wanted[k:k + 1]).release()
    empty = arena.match(keys(0))
    assert len(empty) == 0 and empty.ids.shape == (0,)


@pytest.mark.semantics(19)
def test_s19_a_scattered_match_answers_in_place(arena):
    a, b, c, missing = keys(4, seed=19)
    lease_a, lease_b, lease_c = (store(arena, [key]) for key in (a, b, c))
    lease_b.release()
    before = arena.stats()
    with arena.match_scattered([a, missing, b, b, c]) as hit:
        assert len(hit) == 5 and hit.hits == 4
        assert hit.ids[1] == kvshm.NONE
        assert hit.ids[2] == hit.ids[3]
        assert [hit.ids[0], hit.ids[4]] == [lease_a.ids[0], lease_c.ids[0]]
        after = arena.stats()
        assert after.hits_total - before.hits_total == 4
        assert after.misses_total - before.misses_total == 1
        assert hit.handles[1] is None
        with pytest.raises(kvshm.Misuse):
            hit.view(1)
        assert bytes(hit.view(3)) == content(b)
    assert gauges(arena)["inactive"] == 1  # both holds of b were given back


@pytest.mark.semantics(20)
def test_s20_a_scan_gives_each_block_once(arena):
    a, b, c, missing = keys(4, seed=20)
    store(arena, [a]).release(), store(arena, [b]).release(), store(arena, [c]).release()
    before = arena.stats()
    with arena.scan([a, b, missing, a, c, b]) as found:
        assert list(found.which) == [0, 1, 4]
        assert len(set(found.ids)) == 3
        assert [bytes(found.view(j)) for j in range(3)] == [content(k) for k in (a, b, c)]
        assert gauges(arena)["held"] == 3
    after = arena.stats()
    assert after.lookups_total - before.lookups_total == 6
    assert after.misses_total - before.misses_total == 1
    assert gauges(arena)["inactive"] == 3


@pytest.mark.semantics(21)
def test_s21_a_matched_block_cannot_be_evicted_until_it_is_dropped(arena):
    wanted = keys(1, seed=21)
    store(arena, wanted).release()
    hit = arena.match(wanted)
    assert arena.evict(wanted) == 0
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(16)
    hit.release()
    fill = arena.allocate(16)
    assert [bytes(key) for key in fill.evicted] == [bytes(wanted[0])]
    assert not arena.presence(wanted).any()


@pytest.mark.semantics(22)
def test_s22_a_hit_is_one_touch_and_nothing_else_is(arena):
    wanted = keys(4, seed=22)
    with store(arena, wanted[:3]) as stored:
        ids = stored.ids

    def uses():
        return [arena.block(int(block)).frequency for block in ids]

    def touches():
        return arena.stats().touches_total

    base, counted = uses(), touches()
    with arena.match(wanted):  # three hits and a miss
        pass
    assert uses() == [n + 1 for n in base] and touches() == counted + 3
    with arena.match_scattered([wanted[0], wanted[3], wanted[1]]):
        pass
    assert uses() == [base[0] + 2, base[1] + 2, base[2] + 1] and touches() == counted + 5
    base, counted = uses(), touches()
    with arena.scan(wanted, touch=False), arena.match(wanted, touch=False):
        pass
    with arena.match_scattered(wanted, touch=False):
        pass
    arena.match(wanted[3:]).release()
    arena.presence(wanted)
    assert uses() == base and touches() == counted


@pytest.mark.semantics(23)
def test_s23_a_weak_handle_lasts_as_long_as_that_life_of_the_block(make_arena):
    arena = make_arena(blocks=1)
    key, other = keys(2, seed=23)
    block, = kvshm.mutable_blocks(arena)
    strong = block.stage(key).register()
    weak = strong.weak()
    again = weak.upgrade()
    assert again.handle == strong.handle
    again.release()
    strong.release()
    cached = weak.upgrade()  # nobody held it, it was not evicted
    assert cached.handle == weak.handle
    cached.release()
    block, = kvshm.mutable_blocks(arena)  # evicts it: the same block, another life
    assert block.id == weak.handle.id
    assert weak.upgrade() is None
    kept = block.stage(other).register()
    assert weak.upgrade() is None and arena.upgrade(weak.handle) is None
    assert kept.weak().upgrade().id == weak.handle.id


@pytest.mark.semantics(24)
def test_s24_a_pin_takes_a_block_out_of_what_is_available(arena):
    wanted = keys(1, seed=24)
    lease = store(arena, wanted)
    pin = arena.pin(lease, tag="sys-prompt")
    assert list(pin.ids) == list(lease.ids)
    lease.release()
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(16)
    arena.allocate(15).abort()
    assert arena.presence(wanted)[0]
    pin.release()
    assert len(arena.allocate(16).evicted) == 1


@pytest.mark.semantics(24)
def test_s24_a_pin_is_all_or_nothing(arena):
    lease = store(arena, keys(2, seed=24))
    handles = lease.handles
    lease.release()
    arena.evict(keys(2, seed=24)[1:])
    assert arena.pin(handles) is None
    assert gauges(arena)["held"] == 0


@pytest.mark.semantics(25)
def test_s25_three_weak_handles_of_one_block_upgrade_to_it(arena):
    block, = kvshm.mutable_blocks(arena)
    strong = block.stage(keys(1)[0]).register()
    weaks = [strong.weak() for _ in range(3)]
    for _ in range(2):
        upgraded = [weak.upgrade() for weak in weaks]
        assert {one.id for one in upgraded} == {strong.id}
        for one in upgraded:
            one.release()
        strong.release()  # the second time round nobody holds it
    assert gauges(arena)["inactive"] == 1
