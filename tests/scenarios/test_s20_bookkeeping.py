# SPDX-License-Identifier: Apache-2.0
"""S20, as far as there is one tier: random operations of two attached processes, with evictions in
the midst of allocations, limits that change and kills; the books are checked again and again."""
import pytest

PARTNER = """
import random, sys
import kvshm
from support.oracle import *
name, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
a = kvshm.Arena.attach(name)
r = random.Random(seed)
held, fills, problems = [], [], []

def keys(n):
    return raw_keys(r.randrange(400), n)

def options():
    return {"tenant": r.randrange(3), "priority": r.choice([1, 50, 50, 50, 90, 99, 100]),
            "ttl": r.choice([None] * 9 + [0.2]), "no_cache": r.random() < 0.1,
            "priority_seconds": r.choice([None, None, 0.2]), "evict": r.random() < 0.9}

def put():
    wanted = keys(r.randrange(1, 6))
    held.append(store(a, wanted, **options()))

def look():
    wanted = keys(r.randrange(1, 9))
    found = a.match(wanted)
    problems.extend(verify(found, wanted))
    held.append(found)

def begin():
    n = r.randrange(1, 4)
    fills.append(a.allocate(n, keys=keys(n), **options()))

def end():
    if fills:
        fills.pop(r.randrange(len(fills))).abort()

def drop():
    for _ in range(r.randrange(1, 4)):
        if held:
            held.pop(r.randrange(len(held))).release()

def change():
    lease = r.choice(held) if held else []
    if len(lease):
        h = lease.handle(r.randrange(len(lease)))
        r.choice([lambda: a.set_priority(h, r.choice([0, 50, 100]), r.choice([None, 0.1])),
                  lambda: a.set_no_cache(h, r.random() < 0.5),
                  lambda: held.append(a.pin(h))])()

def limit():
    a.set_tenant(r.randrange(1, 3), quota=r.choice([None, 8, 20]), weight=r.choice([None, 1, 3]))
    a.set_pin_budget(r.choice([None, 2, 10]))

def sweep():
    r.choice([lambda: a.evict(keys(4)), a.reap, lambda: a.presence(keys(20))])()

def whole():
    key = bytes(raw_keys(10_000 + r.randrange(8), 1)[0])
    stored = r.randrange(1, 400) * 8
    o = a.get_object(key)
    if o is None:
        a.put_object(key, bytes(payload(key, stored)), **options())
    else:
        with o:
            if bytes(o) != bytes(payload(key, len(o))):
                problems.append(f"object {key.hex()} of {len(o)} bytes")

ways = [put] * 5 + [look] * 5 + [begin] * 2 + [end] * 2 + [drop] * 9 + [change] * 2 + [sweep, whole]
for n in range(count):
    if len(held) > 12:
        drop()
    if n % 997 == 0:
        limit()
    try:
        r.choice(ways)()
    except (kvshm.NoSpace, kvshm.Busy, kvshm.Misuse, kvshm.ArenaNotFound):
        pass
for one in held:
    one.release()
for one in fills:
    one.abort()
say(problems)
hear()
"""
BOOKS = """
s, tenants, (pins, budget) = a.stats(), a.tenants(), a.pins()
blocks = [a.block(i) for i in range(a.blocks)]
gauges = {k: v for k, v in s.items() if k.startswith("blocks_")}
in_use = [b for b in blocks if b.state != 0]
unequal = [x for x in (
    sum(v for k, v in gauges.items() if k != "blocks_total") != a.blocks and gauges,
    any(not 0 <= v <= a.blocks for v in gauges.values()) and gauges,
    any(v < 0 for v in s.values()) and s,
    sum(t.used for t in tenants) != len(in_use) and tenants,
    any(t.used != sum(b.tenant == t.tenant for b in in_use) for t in tenants) and tenants,
    pins != sum(b.priority == 100 for b in in_use) and (pins, budget),
    any(not 0 <= b.priority <= 100 for b in blocks) and "priorities",
    s.rollbacks_total > s.alloc_refused_total and s) if x]
"""


@pytest.mark.slow
def test_the_books_are_right(player, start, arena_name, rounds):
    boss = player()
    boss.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=64, block_bytes=256)")
    total, step = rounds(24_000, 1_000_000), rounds(4000, 10_000)
    for n in range(total // step):
        crew = [start(PARTNER, arena_name, f"{n} {side}", step // 2) for side in range(2)]
        if n % 3 == 2:  # one of them dies in the midst of it
            boss.do("import time; time.sleep(0.2)")
            crew.pop().kill()
        for one in crew:
            assert one.hear(100) == []
        boss.do("a.reap()")
        boss.do(BOOKS)
        assert boss.get("unequal") == [], n
        assert boss.get("a.is_valid()") == [], n
        assert boss.get("[b for b in map(a.block, range(a.blocks)) if b.holders]") == [], n
        for one in crew:
            one.kill()
        boss.do("a.reap()")
    boss.do("a.clear()")
    assert boss.get("a.stats().blocks_free") == 64 and boss.get("a.pins()[0]") == 0
