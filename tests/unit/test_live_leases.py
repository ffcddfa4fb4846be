# SPDX-License-Identifier: Apache-2.0
"""LeaseRegistry: which leases are still held, and by whom."""
import gc
import time

import kvshm
from kvshm.index import LeaseRegistry
from support.arenas import gauges, keys, store

WANTED = keys(4, seed=12)


def test_live_leases_by_tag_and_age(arena):
    before = store(arena, WANTED)
    registry = LeaseRegistry(arena)
    first = arena.match(WANTED, tag="one")
    time.sleep(0.05)
    second = arena.match(WANTED[:2], tag="two")
    third = arena.match_scattered([WANTED[0], keys(1, 99)[0]], tag="two")
    assert len(registry) == 3 and set(registry) == {first, second, third}
    assert registry.by_tag() == {"one": 4, "two": 3}
    old = registry.older_than(0.05)
    assert [(lease.tag, lease.blocks) for lease in old] == [("one", 4)]
    assert old[0].age >= 0.05
    assert [lease.blocks for lease in registry.older_than(0, tag="two")] == [2, 1]
    assert "lease 'one': 4 blocks" in registry.report()
    first.release()
    assert registry.by_tag() == {"two": 3}
    before.release()


def test_it_keeps_no_lease_alive(arena):
    registry = LeaseRegistry(arena)
    store(arena, WANTED)
    gc.collect()
    assert len(registry) == 0 and registry.report() == ""
    assert gauges(arena)["held"] == 0


def test_where_a_lease_was_made(arena):
    store(arena, WANTED).release()
    registry = LeaseRegistry(arena, stacks=True)
    leaked = arena.match(WANTED, tag="leak")
    assert "test_where_a_lease_was_made" in registry.older_than(0)[0].where
    assert "test_where_a_lease_was_made" in registry.report()
    registry.close()
    arena.match(WANTED).release()
    other = arena.match(WANTED)
    assert len(registry) == 0
    assert isinstance(leaked, kvshm.Lease) and len(other) == 4
