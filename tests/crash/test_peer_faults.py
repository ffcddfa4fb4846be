# SPDX-License-Identifier: Apache-2.0
"""Five things that go wrong elsewhere when a writer or a reader dies or stalls, and not here.

Each with real processes, killed by SIGKILL or stopped by SIGSTOP; the bytes that a key and a life
must have are those of support.oracle.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import kvshm
import pytest
from support.arenas import eventually
from support.oracle import Bytes, judge, raw_keys, store, verify, wrong_blocks
from support.player import PLAYER, Player

pytestmark = pytest.mark.crash

BYTES = 64 << 10
HALF = BYTES // 2


@pytest.fixture
def player(worker, tests_path) -> Callable[[str], Player]:
    def attached(name: str) -> Player:
        one = Player(worker(PLAYER, env=tests_path))
        one.do(f"a = kvshm.Arena.attach({name!r}, helper=False)")
        return one
    return attached


@pytest.fixture
def arena(make_arena) -> Iterator[kvshm.Arena]:
    one = make_arena(16, BYTES, helper=False)
    yield one
    one.reap()  # the players have been killed by now, some with holds


# How far the writer has come, in its own words; `keys` are two.
MOMENTS = {
    "allocated": "f = a.allocate(2, keys=keys)",
    "half written": "f = a.allocate(2, keys=keys); "
                    "f.copy_in(0, payload(keys[0], a.block_bytes)[:a.block_bytes // 2])",
    "written": "f = a.allocate(2, keys=keys); write(a, f, keys)",
    "not announced": "f = a.allocate(2, keys=keys, announce=False); write(a, f, keys)",
    "one slice of two": "f = a.allocate(2, keys=keys, parts=2); "
                        "[(f.begin(i, 0), f.view(i).release(), f.arrive(i, 0)) for i in (0, 1)]",
    "in a second slice": "f = a.allocate(2, keys=keys, parts=2); "
                         "[(f.begin(i, p), p or f.arrive(i, p)) for i in (0, 1) for p in (0, 1)]",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_writer_killed_in_mid_store_is_never_served(arena, player, moment) -> None:
    keys = raw_keys(0, 2)
    writer = player(arena.name)
    writer.do("keys = raw_keys(0, 2); " + MOMENTS[moment])
    assert len(arena.match(keys)) == 0
    writer.kill()
    for _ in range(3):
        with arena.match(keys) as found:
            assert len(found) == 0, "before it is reaped"
    assert arena.reap().fills == 2
    with arena.match(keys) as found:
        assert len(found) == 0 and found.pending is None
    assert list(arena.presence(keys)) == [0, 0]
    assert arena.stats()["blocks_free"] == arena.blocks
    with store(arena, keys) as mine:  # nothing of it is in the next one's way
        assert verify(mine, keys) == []
        with arena.match(keys) as found:
            assert verify(found, keys) == [] and len(found) == 2


def test_writer_killed_at_any_moment_is_never_served(arena, player) -> None:
    """Every hit of a reader that never stops looking is whole, through six deaths in mid-store."""
    for number in range(6):
        writer = player(arena.name)
        writer.send("""
            for n in range(10**9):
                keys = raw_keys(n * 4 % 40, 4)
                a.evict(keys)
                try:
                    store(a, keys).release()
                except kvshm.NoSpace:
                    pass
        """)
        hits = 0
        end = time.monotonic() + 0.25 + 0.013 * number
        while time.monotonic() < end:
            for first in range(0, 40, 4):
                with arena.match(raw_keys(first, 4), touch=False) as found:
                    assert verify(found, raw_keys(first, 4)) == []
                    hits += len(found)
        writer.kill()
        arena.reap()
        assert hits > 0, "nothing was ever served: the test looks at nothing"
        assert arena.stats()["blocks_filling"] == 0
        assert wrong_blocks(arena) == []


@pytest.mark.parametrize("frozen", [False, True], ids=["slow", "stopped"])
def test_slow_reader_sees_its_bytes_never_change(arena, player, frozen) -> None:
    keys = raw_keys(0, 4)
    store(arena, keys).release()
    reader = player(arena.name)
    reader.do("""
        keys = raw_keys(0, 4)
        lease = a.match(keys)
        seen = [h.seq for h in lease.handles]
        views = [lease.view(i) for i in range(4)]
        half = [bytes(v[:a.block_bytes // 2]) for v in views]
    """)
    if frozen:
        reader.worker.stop()
    before = arena.stats()["evicted_total"]
    for n in range(40):  # all that can be had, several times over, by every way to get it
        store(arena, raw_keys(100 + 12 * n, 12)).release()
        with arena.allocate(12) as fill:
            for i in range(12):
                fill.view(i)[:] = b"\xff" * BYTES
        assert arena.evict(keys) == 0
        if n % 8 == 0:
            arena.clear()
            arena.reap()
    assert arena.stats()["evicted_total"] - before > 40
    if frozen:
        reader.worker.resume()
    reader.do("""
        copies = [h + bytes(v[a.block_bytes // 2:]) for h, v in zip(half, views)]
        found = [judge(c, keys[i], seen[i]).name for i, c in enumerate(copies)]
    """)
    assert reader.get("found") == ["RIGHT"] * 4
    assert reader.get("[h.seq for h in lease.handles] == seen")
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(13)
    reader.do("[v.release() for v in views]; lease.release()")
    assert arena.evict(keys) == 4


@pytest.mark.parametrize("policy", ["allow", "reject"])
@pytest.mark.parametrize("announce", [True, False], ids=["announced", "quiet"])
def test_stalled_writer_that_wakes_up_overwrites_nothing(arena, player, policy, announce) -> None:
    """It stops half-way. Others store the same keys and many more; then it goes on where it was,
    as if nothing had happened."""
    keys = raw_keys(0, 2)
    writer = player(arena.name)
    writer.do(f"""
        keys = raw_keys(0, 2)
        f = a.allocate(2, keys=keys, announce={announce})
        seqs = [h.seq for h in f.handles]
        parts = [payload(keys[i], a.block_bytes, seqs[i]) for i in (0, 1)]
        views = [f.view(i) for i in (0, 1)]  # plain stores: no call that could refuse them
        for i in (0, 1):
            views[i][:a.block_bytes // 2] = parts[i][:a.block_bytes // 2]
    """)
    its_blocks = set(writer.get("[int(i) for i in f.ids]"))
    writer.worker.stop()

    arena.reap()  # it is stopped, not dead
    with store(arena, keys) as mine:
        assert verify(mine, keys) == []
        given = set(map(int, mine.ids))
        for n in range(30):
            with store(arena, raw_keys(100 + 12 * n, 12)) as other:
                given.update(map(int, other.ids))
        committed = store(arena, raw_keys(100, 12))
        arena.reap()

        writer.worker.resume()
        writer.do("""
            for i in (0, 1):
                views[i][a.block_bytes // 2:] = parts[i][a.block_bytes // 2:]
                views[i].release()
        """)
        assert verify(mine, keys) == [], "what was committed meanwhile has changed"
        writer.do(f"lease = f.register({policy!r}); wrong = verify(lease, keys)")
        assert writer.get("wrong") == []
        assert its_blocks.isdisjoint(given), "its blocks were given away"
        assert verify(mine, keys) == []
        assert verify(committed, raw_keys(100, 12)) == []
        with arena.match(keys) as found:
            assert len(found) == 2 and verify(found, keys) == []
            if not announce:  # then those who committed first have the entries, and keep them
                assert list(found.ids) == list(mine.ids)
        committed.release()
    writer.do("lease.release()")
    assert wrong_blocks(arena) == []


def test_reader_killed_with_holds_blocks_nobody_for_a_second(arena, player) -> None:
    keys = raw_keys(0, 16)
    store(arena, keys).release()
    reader = player(arena.name)
    reader.do("""
        keys = raw_keys(0, 16)
        leases = [a.match(keys), a.match(keys), a.pin(a.match(keys))]
        views = [leases[0].view(i) for i in range(16)]
    """)
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(1)
    assert arena.stats()["blocks_held"] == 16
    reader.kill()
    died = time.monotonic()
    with arena.allocate(16, timeout=5):  # nobody told this process, and it runs no helper
        took = time.monotonic() - died
    assert took < 1
    assert arena.stats()["slots_used"] == 1

    # The same for those who wait already, and by the helper of a third process.
    store(arena, keys).release()
    reader = player(arena.name)
    reader.do("lease = a.match(raw_keys(0, 16))")
    with kvshm.Arena.attach(arena.name, reap_interval=0.1):
        waiting = player(arena.name)
        waiting.send("got = a.allocate(16, timeout=20); at = time.monotonic()")
        time.sleep(0.3)
        reader.kill()
        died = time.monotonic()
        waiting.answer()
        assert waiting.get("at") - died < 1
        waiting.do("got.abort()")
        assert eventually(lambda: arena.stats()["slots_used"] == 3, 2)


def test_full_is_refused_and_says_so(arena, player) -> None:
    """Held to the last block: a store raises, waits no longer than it was told to, and leaves no
    trace that anybody could take for success."""
    held = player(arena.name)
    held.do("lease = store(a, raw_keys(0, 16))")
    wanted = raw_keys(100, 3)
    before = arena.stats()
    with pytest.raises(kvshm.NoSpace, match="3 blocks"):
        arena.allocate(3, keys=wanted)
    started = time.monotonic()
    with pytest.raises((kvshm.NoSpace, kvshm.TimedOut)):
        arena.allocate(3, keys=wanted, timeout=0.3)
    assert 0.25 < time.monotonic() - started < 3
    with pytest.raises(kvshm.NoSpace):
        store(arena, wanted)
    with pytest.raises(kvshm.NoSpace):
        kvshm.mutable_blocks(arena, 1)
    with pytest.raises(kvshm.NoSpace):
        arena.put_object(bytes(wanted[0]), b"x" * (2 * BYTES))
    assert arena.get_object(bytes(wanted[0])) is None
    after = arena.stats()
    assert after["alloc_refused_total"] - before["alloc_refused_total"] >= 5
    for name in ("allocated_total", "registered_total", "evicted_total", "blocks_filling"):
        assert after[name] == before[name], name
    assert len(arena.match(wanted)) == 0 and list(arena.presence(wanted)) == [0, 0, 0]

    # One block is free: three are still too many, and the one is not used up by asking.
    held.do("lease.release(); lease = a.match(raw_keys(0, 15)); a.evict(raw_keys(15, 1))")
    assert arena.stats()["blocks_free"] == 1
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(3, keys=wanted)
    with store(arena, wanted[:1]) as one:
        assert verify(one, wanted[:1]) == []
        with one.view(0) as view:
            assert judge(view, wanted[0], one.handle(0).seq) is Bytes.RIGHT
    assert held.get("verify(lease, raw_keys(0, 15))") == []
