# SPDX-License-Identifier: Apache-2.0
"""S18, S22, S23: what is held is not reused, however slow its reader; what was promised loads."""
import time

import pytest

PRESSURE = """
import sys
import kvshm
from support.oracle import *
a = kvshm.Arena.attach(sys.argv[1], reap_interval=0.05)
n, seed = 0, int(sys.argv[2])
say("pressing")
while True:
    n += 1
    try:
        store(a, raw_keys(seed + n * 4 % 100_000, 4)).release()
        with a.allocate(3):      # and slots that are written and given up again
            pass
    except kvshm.NoSpace:
        pass
"""


@pytest.fixture
def scene(player, start, arena_name):
    """An arena of 64 blocks, 10 of them held by a reader, and two processes that want them all."""
    reader = player()
    reader.do(f"""
        a = kvshm.Arena.create({arena_name!r}, blocks=64, block_bytes=65536, reap_interval=0.05)
        keys = raw_keys(0, 10)
        store(a, keys).release()
        lease = a.match(keys)
        handles = [tuple(h) for h in lease.handles]
        views = [lease.view(i) for i in range(10)]
        half = [bytes(v[:32768]) for v in views]      # the slow copy has come half-way
    """)
    for seed in (1_000_000, 2_000_000):
        assert start(PRESSURE, arena_name, seed).hear() == "pressing"
    return reader


FINISH = """
    copies = [h + bytes(v[32768:]) for h, v in zip(half, views)]
    verdicts = [judge(c, keys[i], handles[i][1]).value for i, c in enumerate(copies)]
"""


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True], ids=["slow", "frozen"])
def test_held_while_read(scene, player, arena_name, frozen, rounds):
    """S18, S22: also stopped for longer than every interval (50 ms to reap, here)."""
    watcher = player()
    watcher.do(f"a = kvshm.Arena.attach({arena_name!r}, helper=False)")
    before = watcher.get("a.stats().evicted_total")
    if frozen:
        scene.worker.stop()
        time.sleep(rounds(1, 5))
        ids = watcher.get("[i for i in range(64) if a.block(i).holders & 1]")
        scene.worker.resume()
        assert len(ids) == 10, "its blocks are still its own"
    else:
        time.sleep(0.5)
    assert watcher.get("a.stats().evicted_total") - before > 100, "there was pressure"
    scene.do(FINISH)
    assert scene.get("verdicts") == ["right"] * 10
    # The read was valid: the blocks are in the same life as when they were promised.
    assert scene.get("[tuple(h) for h in lease.handles] == handles")
    scene.do("[v.release() for v in views]; lease.release()")
    deadline = time.monotonic() + 5
    while watcher.get("[a.upgrade(h) is not None for h in "
                      f"{scene.get('handles')!r}]") == [True] * 10:
        assert time.monotonic() < deadline, "reused once it was released"
        time.sleep(0.05)


@pytest.mark.crash
def test_reused_after_the_readers_death(scene, player, arena_name):
    watcher = player()
    watcher.do(f"a = kvshm.Arena.attach({arena_name!r}, helper=False)")
    handles = scene.get("handles")
    assert watcher.get(f"[a.upgrade(h) is not None for h in {handles!r}]") == [True] * 10
    scene.kill()
    deadline = time.monotonic() + 5
    while any(watcher.get(f"[a.upgrade(h, touch=False) is not None for h in {handles!r}]")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_what_lookup_promised(player, start, arena_name, rounds):
    """S23: with a hold all of it loads; without, the answer is a hint and the load is shorter."""
    holder, hinter = player(), player()
    holder.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=64, block_bytes=4096)")
    hinter.do(f"a = kvshm.Arena.attach({arena_name!r})")
    holder.do("keys = raw_keys(0, 16); held = store(a, keys); held.release(); held = a.match(keys)")
    hinter.do("keys = raw_keys(100, 16); store(a, keys).release()")
    assert holder.get("len(held)") == 16
    assert hinter.get("int(a.presence(keys).sum())") == 16
    press = start(PRESSURE, arena_name, 5_000_000)
    press.hear()
    deadline = time.monotonic() + 10
    while holder.get("a.stats().evicted_total") < 2 * 64:  # the whole cache, twice
        assert time.monotonic() < deadline
        time.sleep(0.02)
    press.kill()
    assert holder.get("verify(held, keys)") == []
    hinter.do("m = a.match(keys)")
    assert hinter.get("len(m)") < 16, "no promise was made"
    assert hinter.get("verify(m, keys)") == []
