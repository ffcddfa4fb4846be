# SPDX-License-Identifier: Apache-2.0
"""Tenants, pins, times to live and priorities for a while, from Python; refusals say why."""
import time

import kvshm
import pytest
from support.oracle import raw_keys, store


@pytest.fixture
def small(make_arena):
    return make_arena(blocks=16, block_bytes=64)


def count(arena, keys):
    return int((arena.presence(keys) == kvshm.Presence.G2).sum())


def refusals(arena):
    return {k.removeprefix("refused_").removesuffix("_total"): v
            for k, v in arena.stats(own=True).items() if k.startswith("refused_") and v}


def test_a_tenant_has_a_number_for_its_name(small):
    number = small.tenant("acme")
    assert 1 <= number <= 255
    assert small.tenant("acme") == number != small.tenant("umbrella")
    assert [t.name for t in small.tenants()].count("acme") == 1
    for wrong in ("", "a\0b", 7, None, "x" * 256):
        with pytest.raises(kvshm.InvalidArgument):
            small.tenant(wrong)


def test_a_quota_replaces_own_blocks_and_refuses_only_when_all_are_held(small):
    acme = small.tenant("acme")
    small.set_tenant("acme", quota=4)
    others, first, second = raw_keys(0, 6), raw_keys(100, 4), raw_keys(200, 4)
    store(small, others).release()
    store(small, first, tenant=acme).release()
    fill = small.allocate(4, keys=second, tenant=acme)
    assert sorted(map(bytes, fill.evicted)) == sorted(map(bytes, first))
    with fill.register() as held:
        assert count(small, others) == 6 and count(small, first) == 0
        with pytest.raises(kvshm.OverQuota, match="quota of 4 blocks") as caught:
            small.allocate(1, tenant=acme)
        assert caught.value.reason == "quota" and isinstance(caught.value, kvshm.NoSpace)
        with pytest.raises(kvshm.NoSpaceInTime, match="quota is used up") as caught:
            small.allocate(1, tenant=acme, timeout=0.05)
        assert caught.value.reason == "quota" and caught.value.code == 110
        small.allocate(6).abort()  # nobody else is bound
        assert len(held) == 4
    info = next(t for t in small.tenants() if t.tenant == acme)
    assert info == (acme, "acme", 4, 4, None, None)
    small.set_tenant(acme)
    small.allocate(6, tenant=acme).abort()


def test_a_full_arena_is_shared_by_weight(small):
    small.set_tenant(1, weight=3)
    small.set_tenant(2, weight=1)
    store(small, raw_keys(0, 8), tenant=1).release()
    store(small, raw_keys(100, 8), tenant=2).release()
    store(small, raw_keys(200, 4), tenant=1).release()
    assert count(small, raw_keys(0, 8)) == 8 and count(small, raw_keys(100, 8)) == 4
    store(small, raw_keys(300, 4), tenant=2).release()
    assert {t.tenant: (t.used, t.share) for t in small.tenants()} == {1: (12, 12), 2: (4, 4)}


def test_refusals_are_told_apart(small):
    with pytest.raises(kvshm.TooLarge) as caught:
        small.allocate(17, timeout=60)
    assert caught.value.reason == "size" and isinstance(caught.value, kvshm.InvalidArgument)
    with pytest.raises(kvshm.TooLarge):
        small.create_object(b"k" * 16, 17 * 64)
    store(small, raw_keys(0, 8), priority=100).release()
    with pytest.raises(kvshm.NoSpace) as caught:
        small.allocate(9)
    assert (type(caught.value), caught.value.reason) == (kvshm.NoSpace, "pinned")
    with small.allocate(8):
        with pytest.raises(kvshm.NoSpace) as caught:
            small.allocate(1, evict=False)
        assert caught.value.reason == "no_free"
        with pytest.raises(kvshm.NoSpaceInTime) as caught:
            small.allocate(9, timeout=0.02)
        assert caught.value.reason == "held"
    small.set_tenant(3, quota=2)
    with pytest.raises(kvshm.TooLarge, match="quota of tenant 3"):
        small.allocate(3, tenant=3, timeout=60)
    counted = refusals(small)
    assert counted.pop("held") >= 1  # one a slice of the wait
    assert counted == {"size": 3, "pinned": 1, "no_free": 1}
    # What is there already is no refusal, whatever was refused before.
    with small.allocate(1, keys=raw_keys(0, 1)) as fill:
        assert fill.status[0] == kvshm.Status.EXISTS
    assert refusals(small) | {"held": 0} == counted | {"held": 0}


def test_the_process_quota_is_a_quota_too(small):
    with kvshm.Arena.attach(small.name, quota=2, helper=False) as bound:
        with pytest.raises(kvshm.OverQuota) as caught:
            bound.allocate(3)
        assert caught.value.reason == "quota"
        assert refusals(bound) == {"quota": 1}


def test_pins_have_a_budget(small):
    assert small.pins() == (0, None)
    small.set_pin_budget(2)
    with store(small, raw_keys(0, 3)) as held:
        for i in range(2):
            small.set_priority(held.handle(i), 100)
        with pytest.raises(kvshm.OverPinBudget, match="kvshm unpin") as caught:
            small.set_priority(held.handle(2), 100)
        assert caught.value.reason == "pinned"
        assert small.block(held.handle(2).id).priority == 50
        assert small.pins() == (2, 2)
        with pytest.raises(kvshm.OverPinBudget):
            small.allocate(1, priority=100)
        small.set_priority(held.handle(0), 50)
        small.set_priority(held.handle(2), 100)
    assert refusals(small) == {"pinned": 2}
    small.set_pin_budget(None)
    small.allocate(2, priority=100).abort()
    assert small.pins() == (2, None)


def test_a_time_to_live_ends(small):
    keys = raw_keys(0, 2)
    with store(small, keys, ttl=0.3) as held:
        handle = held.handle(0)
        left = small.block(handle.id).ttl
        assert 0 < left <= 0.3
        assert count(small, keys) == 2
        time.sleep(0.35)
        assert small.block(held.handle(0).id).ttl == 0.0
        assert count(small, keys) == 0 and len(small.match(keys)) == 0
        assert len(held.view(0)) == 64  # a holder keeps it
    assert small.upgrade(handle) is None
    store(small, keys).release()  # in their place
    assert count(small, keys) == 2 and small.stats().duplicates_total == 0
    for wrong in (0, -1, float("nan"), "soon"):
        with pytest.raises(kvshm.InvalidArgument):
            small.allocate(1, ttl=wrong)
    small.allocate(1, ttl=float("inf"), priority_seconds=None).abort()


def test_a_priority_for_a_while(small):
    keys = raw_keys(0, 16)
    store(small, keys[:1], priority=90, priority_seconds=0.2).release()
    store(small, keys[1:]).release()
    lease = small.match(keys[:1], touch=False)
    info = small.block(lease.handle(0).id)
    assert info.priority == 90 and 0 < info.priority_seconds <= 0.2
    small.set_priority(lease.handle(0), 100, seconds=0.3)
    lease.release()
    assert small.pins() == (1, None)
    store(small, raw_keys(100, 14)).release()
    assert count(small, keys[:1]) == 1
    time.sleep(0.35)
    small.allocate(16).abort()
    assert count(small, keys[:1]) == 0  # of the default again, so it went
    assert small.is_valid() == []
