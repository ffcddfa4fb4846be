# SPDX-License-Identifier: Apache-2.0
"""S12: many processes, shared prefixes, a cache that holds a fifth of them."""
import pytest

WORK = """
import random, sys
import kvshm
from support.oracle import *
name, seed, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
a = kvshm.Arena.attach(name)
# 50 prefixes of random depth; the chain of the first is shared by those that branch from it
shape = random.Random(12)
trunk = raw_keys(0, 40)
prefixes = []
for n in range(50):
    stem, tail = shape.randrange(0, 30), shape.randrange(4, 30)
    prefixes.append(np.concatenate([trunk[:stem], raw_keys(1000 * (n + 1), tail)]))
r = random.Random(seed)
asked = hit = refused = 0
wrong = []
for _ in range(count):
    keys = prefixes[r.randrange(50)]
    asked += len(keys)
    with a.match(keys) as found:
        n = len(found)
        hit += n
        wrong += verify(found, keys)      # all of [0, n), so nothing is skipped
        if n < len(keys) and r.random() < 0.9:
            rest = keys[n:]
            try:
                with store(a, rest, after=found) as mine:
                    wrong += verify(mine, rest) if r.random() < 0.1 else []
            except kvshm.NoSpace:
                refused += 1
say([asked, hit, refused, wrong])
hear()
"""
PRE = "import numpy as np\n"


@pytest.mark.slow
def test_replay(player, start, arena_name, rounds):
    boss = player()
    processes, requests = rounds(4, 8), rounds(400, 12_500)
    # 50 prefixes hold about 850 different blocks: a fifth of them fits, and never less than what
    # all processes may hold at once (a request is at most 59 blocks), so no refusal is excusable.
    blocks = max(170, processes * 60)
    boss.do(f"a = kvshm.Arena.create({arena_name!r}, blocks={blocks}, block_bytes=1024)")
    crew = [start(PRE + WORK, arena_name, seed, requests) for seed in range(processes)]
    for _ in range(3):
        # on a busy arena an invariant may look broken for a moment, but not three times in a row
        assert boss.get("min((a.is_valid() for _ in range(3)), key=len)") == []
    results = [one.hear(100) for one in crew]
    for asked, hit, refused, wrong in results:
        assert wrong == []
        assert refused == 0
        assert 0.05 < hit / asked < 0.95
    for one in crew:
        one.kill()
    boss.do("a.reap()")
    assert boss.get("a.is_valid()") == [] and boss.get("wrong_blocks(a)") == []
    assert boss.get("a.stats().blocks_held") == 0
