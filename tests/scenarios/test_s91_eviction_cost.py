# SPDX-License-Identifier: Apache-2.0
"""S91: half of what can go goes in one demand, every second block pinned: the work for a block does
not grow with the cache, and no other process stands still for it. The README says how time does."""
import pytest

OTHER = """
import resource, sys, time
import kvshm
from support.oracle import raw_keys
a = kvshm.Arena.attach(sys.argv[1])
keys = raw_keys(0, 8)
say("ready")
hear()
worst, end = 0.0, time.monotonic() + float(sys.argv[2])
last, taken = time.monotonic(), 0
while last < end:
    with a.match(keys, touch=False):
        pass
    now = time.monotonic()
    # The core was taken from it: no wait of its own.
    before, taken = taken, resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    if taken == before:
        worst = max(worst, now - last)
    last = time.monotonic()
say(worst)
hear()
"""
FILL = """
import time
import numpy as np
from support.oracle import raw_keys
a = kvshm.Arena.create({name!r}, blocks={blocks}, block_bytes=0)
for first in range(0, {blocks}, 32):
    n = min(32, {blocks} - first)
    for at, priority in ((first, 100), (first + n // 2, None)):
        fill = a.allocate(n // 2, keys=raw_keys(at, n // 2), chained=False, priority=priority)
        fill.register().release()
"""

EVICT = """
before, begin = a.stats(), time.thread_time()
fill = a.allocate({n}, keys=None)
took, after = time.thread_time() - begin, a.stats()
looks = after.evict_looks_total - before.evict_looks_total
steps = after.evict_steps_total - before.evict_steps_total
assert len(fill.evicted) == {n}
fill.abort()
"""


def cost(player, start, name, blocks):
    """Descriptors looked at and seconds of a CPU, a block; and the longest stall of another."""
    boss = player()
    boss.do(FILL.format(name=name, blocks=blocks), timeout=120)
    other = start(OTHER, name, 0.2 + blocks / 1e6)
    assert other.hear() == "ready"
    other.say("go")
    n = blocks // 4  # half of what can go
    boss.do(EVICT.format(n=n), timeout=60)
    stall = other.hear(60)
    assert boss.get("int((a.presence(raw_keys(0, 16)) != 0).sum())") == 16  # of the pinned half
    boss.do("a.close(); kvshm.remove(a.name, force=True)")
    return boss.get("looks + steps") / n, boss.get("took") / n, stall


@pytest.mark.slow
def test_cost_is_linear(player, start, new_name, rounds):
    sizes = rounds([10_000, 100_000], [10_000, 100_000, 1_000_000])
    best = {}
    for _ in range(3):
        for n in sizes:
            found = cost(player, start, new_name(), n)
            best[n] = tuple(map(min, best.get(n, found), found))
    print({n: f"{looks:.1f} looks and {t * 1e9:.0f} ns a block, stall {s * 1e3:.1f} ms"
           for n, (looks, t, s) in best.items()})
    (looks, seconds, _), (more, longer, _) = best[sizes[0]], best[sizes[-1]]
    assert more < 1.1 * looks
    assert longer < 4 * seconds  # caches and nothing else; what grows with the cache is 10 or 100
    assert max(stall for _, _, stall in best.values()) < 0.005
