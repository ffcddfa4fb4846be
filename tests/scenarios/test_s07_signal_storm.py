# SPDX-License-Identifier: Apache-2.0
"""S07: two loops of starts and violent ends against one arena."""
import random
import signal
import time

import kvshm
import pytest

WORK = """
import sys, random
import kvshm
from support.oracle import *
a = kvshm.Arena.open(sys.argv[1], blocks=128, block_bytes=4096, reap_interval=0.05)
say("started")
r = random.Random(sys.argv[2])
while True:
    first = r.randrange(40) * 8
    with a.match(raw_keys(first, 8)) as hit:
        assert verify(hit, raw_keys(first, 8)) == []
        if len(hit) < 8:
            try:
                store(a, raw_keys(first + len(hit), 8 - len(hit))).release()
            except kvshm.NoSpace:
                pass
"""
STORMS = ([signal.SIGTERM] * 5, [signal.SIGINT, signal.SIGTERM], [signal.SIGKILL])


@pytest.mark.crash
@pytest.mark.slow
def test_two_loops(start, arena_name, rounds):
    chance = random.Random(7)
    running = {}
    for number in range(2 * rounds(25, 1000)):
        loop = number % 2
        if loop in running:
            one, end = running.pop(loop)
            time.sleep(max(0.0, end - time.monotonic()))
            for signum in chance.choice(STORMS):
                one.process.send_signal(signum)
            status = one.wait(5)
            assert status in (-signal.SIGTERM, -signal.SIGKILL, 1, -signal.SIGINT), (
                status, one.stderr())
            if status == 1:
                assert "KeyboardInterrupt" in one.stderr(), one.stderr()
        one = start(WORK, arena_name, number)
        assert one.hear(10) == "started", "the next start follows at once"
        running[loop] = (one, time.monotonic() + chance.uniform(0, 0.3))
    for one, _ in running.values():
        one.kill()
    with kvshm.Arena.attach(arena_name) as arena:
        arena.reap()
        assert arena.is_valid() == []
        stats = arena.stats()
        assert stats.blocks_held == stats.blocks_filling == stats.blocks_evicting == 0
        from support.oracle import wrong_blocks
        assert wrong_blocks(arena) == []
    kvshm.remove(arena_name)
