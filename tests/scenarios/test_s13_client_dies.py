# SPDX-License-Identifier: Apache-2.0
"""S13, S14: what a dead client held comes back in time, and the living do not notice."""
import time

import kvshm
import pytest


def until(condition, limit=2.0):
    """Seconds until condition() is true; the reap interval may take half a second of them."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit, "not within the limit"
        time.sleep(0.02)
    return time.monotonic() - started


HEALTHY = """
import sys
import kvshm
from support.oracle import *
a = kvshm.Arena.attach(sys.argv[1], helper=False)
keep = a.match(raw_keys(0, 40))
say(len(keep))
n = wrong = 0
while True:
    n += 1
    wrong += len(verify(keep, raw_keys(0, 40)))
    store(a, raw_keys(50_000 + n % 200, 1)).release()
    if n % 100 == 0:
        say([n, wrong])
"""


@pytest.mark.crash
@pytest.mark.slow
def test_pins_and_reservations(player, start, arena_name, rounds):
    owner = player()
    owner.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=400, block_bytes=1024)")
    owner.do("store(a, raw_keys(0, 40)).release(); store(a, raw_keys(100, 200)).release()")
    healthy = start(HEALTHY, arena_name)
    assert healthy.hear() == 40
    memory = []
    for number in range(rounds(8, 50)):
        victim = player()
        victim.do(f"a = kvshm.Arena.attach({arena_name!r}, helper=False); "
                  "lease = a.match(raw_keys(100, 40)); p = a.pin(lease); f = a.allocate(10)")
        assert owner.get("a.stats().blocks_filling") >= 10
        victim.kill()
        until(lambda: owner.get("a.stats().slots_used") == 2)
        assert owner.get("sum(a.block(i).state == 1 for i in range(400))") <= 1
        assert owner.get("sum(bool(a.block(i).holders) for i in range(400))") <= 42
        memory.append(owner.get("int(open('/proc/self/statm').read().split()[1])"))
    assert memory[-1] - memory[2] < 256, f"pages of the owner: {memory}"
    healthy.kill()
    answers = [healthy.hear()]
    try:
        while True:
            answers.append(healthy.hear(1))
    except AssertionError:
        pass
    assert len(answers) > 1 and all(wrong == 0 for _, wrong in answers)
    until(lambda: owner.get("a.stats().slots_used") == 1)
    assert owner.get("a.is_valid()") == []


@pytest.mark.crash
def test_reserved_and_died(player, arena_name, rounds):
    """S14 (a): every slot and block comes back, from more clients than there are slots."""
    owner = player()
    owner.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=64, block_bytes=64, helper=False)")
    for number in range(rounds(60, 1000)):
        victim = player()
        victim.do(f"a = kvshm.Arena.attach({arena_name!r}, helper=False); "
                  f"fill = a.allocate(3, keys=raw_keys({number * 3}, 3))")
        victim.kill()
        assert not owner.get(f"a.match(raw_keys({number * 3}, 3)).hits")
    owner.do("a.reap()")
    assert owner.get("a.stats().blocks_free") == 64
    assert owner.get("a.stats().slots_used") == 1
    assert owner.get("a.is_valid()") == []


def test_refused_then_reserved_elsewhere(player, arena_name):
    """S14 (b): a refusal leaves no trace; the key is free for another process."""
    first, second, third = player(), player(), player()
    first.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=8, block_bytes=1024); "
             "full = a.allocate(8)")
    for one in (second, third):
        one.do(f"a = kvshm.Arena.attach({arena_name!r})")
    error = second.fails("a.allocate(2, keys=raw_keys(0, 2))")
    assert error.kind == "NoSpace"
    assert third.get("list(map(int, a.presence(raw_keys(0, 2))))") == [0, 0]
    first.do("full.abort()")
    third.do("f = a.allocate(2, keys=raw_keys(0, 2))")
    assert third.get("list(map(int, f.status))") == [int(kvshm.Status.ANNOUNCED)] * 2
    third.do("write(a, f, raw_keys(0, 2)); lease = f.register()")
    assert second.get("verify(a.match(raw_keys(0, 2)), raw_keys(0, 2))") == []
    assert first.get("a.is_valid()") == []


@pytest.mark.crash
def test_looked_up_at_each_moment(player, arena_name):
    """S14 (c): a miss, or being written by a living writer; never unwritten bytes, never a hang."""
    writer, reader = player(), player()
    writer.do(f"a = kvshm.Arena.create({arena_name!r}, blocks=8, block_bytes=1024, helper=False)")
    reader.do(f"a = kvshm.Arena.attach({arena_name!r}, helper=False); k = raw_keys(0, 1)")
    look = "[len(a.match(k)), int(a.presence(k)[0])]"
    filling = int(kvshm.Presence.FILLING)
    assert reader.get(look) == [0, 0]
    writer.do("k = raw_keys(0, 1); fill = a.allocate(1, keys=k)")
    assert reader.get(look) == [0, filling]
    reader.do("pending = a.match(k).pending; begun = time.monotonic(); "
              "got = a.wait(pending, 0.3); took = time.monotonic() - begun")
    assert reader.get("not got and 0.25 < took < 0.6")
    writer.do("fill.copy_in(0, b'half' * 100)")
    assert reader.get(look) == [0, filling]
    reader.send("a.wait(pending, 10)", "get")
    time.sleep(0.05)
    writer.kill()
    started = time.monotonic()
    assert reader.answer() is False, "its writer died: it is over without having become READY"
    assert time.monotonic() - started < 1
    assert reader.get(look) == [0, 0]
    reader.do("mine = store(a, k)")
    assert reader.get("verify(mine, k)") == [] and reader.get("a.is_valid()") == []
