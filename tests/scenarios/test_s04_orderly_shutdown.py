# SPDX-License-Identifier: Apache-2.0
"""S04: processes leave in any order, by any polite means, in time and without noise."""
import itertools
import os
import signal
import time

import kvshm
import pytest
from support import shm_dir

WORK = """
import os, sys, time, signal
import kvshm
from support.oracle import *
a = kvshm.Arena.open(sys.argv[1], blocks=64, block_bytes=4096)
hits = a.match(raw_keys(0, 8))
if not len(hits):
    hits = store(a, raw_keys(0, 8))
fill = a.allocate(2)
say(os.getpid())
"""
# Every other one closes, with what it holds; the others leave that to the end of the process.
POLITE = WORK + """
hear()
if a.slot % 2:
    a.close()
sys.exit(0)
"""
BUSY = WORK + """
say("looping")
n = 0
while True:
    n += 1
    a.match(raw_keys(n % 50, 4)).release()
"""


def clean(name):
    """Only the arena itself is left, with nothing held in it; then it goes, too."""
    assert [p.name for p in shm_dir.iterdir() if name in p.name] == [f"kvshm.{name}"]
    with kvshm.Arena.attach(name, helper=False) as arena:
        arena.reap()
        stats = arena.stats()
        assert stats.blocks_held == stats.blocks_filling == 0
        assert arena.is_valid() == []
    kvshm.remove(name)
    assert not [p.name for p in shm_dir.iterdir() if name in p.name]


def test_every_order(start, new_name, rounds):
    orders = list(itertools.permutations(range(4)))
    for order in orders[:: rounds(4, 1)]:
        name = new_name()
        crew = [start(POLITE, name) for _ in order]
        for one in crew:
            one.hear()
        for who in order:
            started = time.monotonic()
            crew[who].say("end")
            assert crew[who].wait(5) == 0, crew[who].stderr()
            assert time.monotonic() - started < 5
        assert [one.stderr() for one in crew] == [""] * 4, "no noise"
        clean(name)


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]],
                         ids=["SIGTERM to the group", "SIGINT twice"])
def test_signals_to_all(start, arena_name, signals):
    """Python's default: SIGTERM ends at once, SIGINT raises KeyboardInterrupt."""
    crew = [start("import os; os.setpgid(0, int(sys.argv[2]))\n" + BUSY, arena_name, 0)]
    leader = crew[0].hear()
    crew += [start("import os; os.setpgid(0, int(sys.argv[2]))\n" + BUSY, arena_name, leader)
             for _ in range(3)]
    for one in crew[1:]:
        one.hear()
    for one in crew:
        assert one.hear() == "looping"
    started = time.monotonic()
    for signum in signals:
        os.killpg(leader, signum)
        time.sleep(0.02)
    statuses = [one.wait(5) for one in crew]
    assert time.monotonic() - started < 5
    if signals == [signal.SIGTERM]:
        assert statuses == [-signal.SIGTERM] * 4
    else:
        # 1: the traceback of KeyboardInterrupt; -2: the second one met the end of the interpreter
        assert set(statuses) <= {1, -signal.SIGINT, 130}, statuses
        assert all("KeyboardInterrupt" in one.stderr() for one in crew)
    for one in crew:
        assert "leaked" not in one.stderr() and "core dumped" not in one.stderr()
    clean(arena_name)


def test_a_start_that_fails_half_way(start, arena_name, tmp_path):
    one = start("""
        import sys, kvshm
        kvshm.Arena.open(sys.argv[1], blocks=64, block_bytes=4096, dir=sys.argv[2])
    """, arena_name, tmp_path / "missing")
    assert one.wait(5) == 1
    assert "ArenaNotFound" in one.stderr() or "No such file" in one.stderr()
    assert not (shm_dir / f"kvshm.{arena_name}").exists()
    # Pages cannot be huge on this mount, after the object was made and sized.
    with pytest.raises(kvshm.Unsupported, match="2 MiB pages"):
        kvshm.Arena.open(arena_name, size="16MiB", block_bytes=4096, huge="require")
    assert not (shm_dir / f"kvshm.{arena_name}").exists()
    with kvshm.Arena.open(arena_name, blocks=64, block_bytes=4096) as arena:
        assert arena.info().created
