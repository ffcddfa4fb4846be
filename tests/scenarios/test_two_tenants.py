# SPDX-License-Identifier: Apache-2.0
"""Two tenants on one arena: one floods it with prompts that never come again, the other asks for
the same ones now and then. A share, or a quota, keeps the second one's; kills put no count off."""
import pytest

FLOOD = """
import sys
import kvshm
from support.oracle import raw_keys
name, tenant, first, count = sys.argv[1], *map(int, sys.argv[2:5])
a = kvshm.Arena.attach(name)
say("ready")
for n in range(count):
    keys = raw_keys(first + 8 * n, 8)
    a.allocate(8, keys=keys, tenant=tenant).register().release()
hear()
"""

# In rounds, while the flood goes on: everything once, stored again where it is missing.
REGULAR = """
import sys, time
import kvshm
from support.oracle import *
name, tenant, blocks, rounds = sys.argv[1], *map(int, sys.argv[2:5])
a = kvshm.Arena.attach(name)
keys = raw_keys(0, blocks)
store(a, keys, tenant=tenant).release()
say("ready")
asked = hit = most = 0
wrong = []
for n in range(rounds):
    most = max([most, *(t.used for t in a.tenants() if t.tenant == 1)])
    for at in range(0, blocks, 8):
        mine = keys[at:at + 8]
        with a.match(mine) as found:
            asked += 8
            hit += len(found)
            wrong += verify(found, mine)
            if len(found) < 8:
                store(a, mine[len(found):], after=found, tenant=tenant).release()
    time.sleep(0.02)
say([asked, hit, most, wrong])
hear()
"""
BLOCKS, REGULARS = 512, 160


def run(player, start, arena_name, rounds, limits):
    boss = player()
    boss.do(f"a = kvshm.Arena.create({arena_name!r}, blocks={BLOCKS}, block_bytes=64)")
    for line in limits:
        boss.do(line)
    regular = start(REGULAR, arena_name, 2, REGULARS, rounds(30, 300))
    assert regular.hear() == "ready"
    flood = start(FLOOD, arena_name, 1, 1_000_000, 10_000_000)
    assert flood.hear() == "ready"
    asked, hit, most, wrong = regular.hear(60)
    flood.kill()
    boss.do("a.reap()")
    assert wrong == [] and boss.get("a.stats().alloc_refused_total") == 0
    return boss, hit / asked, most


def counts_are_right(boss):
    used = dict(boss.get("[(t.tenant, t.used) for t in a.tenants() if t.used]"))
    from kvshm.tools.cli import quota
    from kvshm.tools.cli.arenas import open_view

    with open_view(boss.get("a.name"), None) as view:
        rows = quota.describe(view)["tenants"]
    assert {t["tenant"]: t["used_blocks"] for t in rows if t["used_blocks"]} == used
    return {t["tenant"]: t["counted_blocks"] for t in rows if t["used_blocks"]} == used


@pytest.mark.slow
def test_without_limits_the_flood_takes_it(player, start, arena_name, rounds):
    """The control: what the limits below are for."""
    _, hits, most = run(player, start, arena_name, rounds, [])
    assert hits < 0.6 and most > BLOCKS * 0.75


@pytest.mark.slow
@pytest.mark.parametrize("limits", [["a.set_tenant(1, weight=1)", "a.set_tenant(2, weight=1)"],
                                    ["a.set_tenant(1, quota=300)"]], ids=["weights", "quota"])
def test_limits_keep_the_regulars(player, start, arena_name, rounds, limits):
    boss, hits, most = run(player, start, arena_name, rounds, limits)
    assert hits > 0.97
    assert most <= (BLOCKS - REGULARS + 16 if "weight" in limits[0] else 300)
    assert boss.get("a.is_valid()") == []


@pytest.mark.slow
def test_kills_put_no_count_off(player, start, arena_name, rounds):
    boss = player()
    boss.do(f"a = kvshm.Arena.create({arena_name!r}, blocks={BLOCKS}, block_bytes=64)")
    boss.do("a.set_tenant(1, quota=200), a.set_tenant(2, weight=2)")
    for n in range(rounds(6, 100)):
        crew = [start(FLOOD, arena_name, t, 1_000_000 * t + 10_000 * n, 100_000) for t in (1, 2)]
        for one in crew:
            assert one.hear() == "ready"
        boss.do(f"import time; time.sleep({0.01 * (n % 7)})")
        for one in crew:
            one.kill()
        boss.do("a.reap()")
        assert counts_are_right(boss)
        assert boss.get("a.is_valid()") == []
    assert boss.get("a.stats().blocks_held") == 0
