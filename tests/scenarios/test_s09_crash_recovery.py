# SPDX-License-Identifier: Apache-2.0
"""S09: everybody dies at a random instant of heavy work; what is found afterwards is whole."""
import random
import time

import kvshm
import pytest
from support.oracle import raw_keys, wrong_blocks

WORK = """
import sys, random
import kvshm
from support.oracle import *
a = kvshm.Arena.open(sys.argv[1], blocks=96, block_bytes=2048, reap_interval=0.05)
say("started")
r = random.Random(sys.argv[2])
reserved = 0
while True:
    first, what = r.randrange(30) * 8, r.random()
    try:
        if what < 0.6:
            with a.match(raw_keys(first, 8)) as hit:
                if len(hit) < 8:
                    store(a, raw_keys(first + len(hit), 8 - len(hit)), after=hit).release()
        elif what < 0.8:    # reserved under keys that nobody ever commits
            with a.allocate(4, keys=raw_keys(100_000 + r.randrange(1000) * 4, 4)) as fill:
                fill.copy_in(0, b"half a block" * 8)
        elif what < 0.9:
            a.evict(raw_keys(first, 8))
        else:
            quiet = a.allocate(2, keys=raw_keys(200_000 + r.randrange(1000), 2), announce=False)
            quiet.register("reject").release() if r.random() < 0 else quiet.abort()
    except kvshm.NoSpace:
        pass
"""


@pytest.mark.crash
@pytest.mark.slow
def test_all_killed(start, arena_name, rounds):
    chance = random.Random(9)
    seen = 0
    for number in range(rounds(12, 200)):
        crew = [start(WORK, arena_name, number * 4 + i) for i in range(4)]
        for one in crew:
            assert one.hear() == "started"
        time.sleep(chance.uniform(0.01, 0.25))
        for one in crew:
            one.process.send_signal(9)
        for one in crew:
            one.kill()
            assert one.stderr() == "", one.stderr()
        with kvshm.Arena.open(arena_name, blocks=96, block_bytes=2048, helper=False) as arena:
            assert not arena.info().created, "it recovers, it does not start anew"
            arena.reap()
            broken = arena.is_valid()
            assert broken == [], (number, broken)
            assert wrong_blocks(arena) == []
            stats = arena.stats()
            assert stats.blocks_free + stats.blocks_inactive == stats.blocks_total
            seen += stats.blocks_inactive
            for first in (100_000, 200_000):
                assert not arena.presence(raw_keys(first, 4000)).any(), "reserved is not visible"
    assert seen > 0, "there was something to verify"
