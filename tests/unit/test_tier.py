# SPDX-License-Identifier: Apache-2.0
"""The NVMe tier from Python: options, what it says of itself, look-ups that load."""
import asyncio
import gc
import itertools
import os
import threading
import time

import kvshm
import numpy as np
import pytest
from support.arenas import BLOCK, content, eventually, gauges, keys, store

SLOTS = 1000
WANTED = keys(6, seed=5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tier"


@pytest.fixture
def tiered(make_arena, path):
    """tiered(blocks=16, ...): an arena with a tier of SLOTS slots, ready for use. Threads move the
    bytes: that works everywhere."""
    def make(blocks=16, **options):
        options.setdefault("tier_size", f"{(SLOTS + 16) * BLOCK}")
        options.setdefault("tier_options", {"engine": "threads"})
        arena = make_arena(blocks, tier=options.pop("tier", path), **options)
        assert eventually(lambda: arena.tier.state == kvshm.TierState.OK)
        return arena
    return make


@pytest.fixture
def arena(tiered):
    return tiered()


def on_disk_alone(arena, wanted):
    """Stored, written down, and evicted from memory."""
    store(arena, wanted).release()
    assert arena.tier_drain(10)
    assert arena.evict(wanted) == len(wanted)
    assert (arena.presence(wanted) == kvshm.Presence.G3).all()


def damage(path, key):
    """Turn a byte of the block of a key over, where it lies in the file. True: it was there."""
    data = path.read_bytes()
    at = data.find(content(key))
    if at < 0:
        return False
    with open(path, "r+b") as file:
        file.seek(at + 100)
        file.write(bytes([data[at + 100] ^ 255]))
        file.flush()
        os.fsync(file.fileno())
    return True


def right(lease, wanted):
    return all(bytes(lease.view(i)[:]) == content(key) for i, key in enumerate(wanted))


# ---- options and errors --------------------------------------------------------------------------

@pytest.mark.parametrize("options, words", [
    ({"tier_size": "1MiB"}, "need a tier"), ({"tier_options": {"sync": True}}, "need a tier"),
    ({"tier": 5}, "a path or a list"), ({"tier": []}, "1 to 8"), ({"tier": ["x"] * 9}, "1 to 8"),
    ({"tier": "a\0b"}, "NUL"), ({"tier": "x", "tier_size": "much"}, "tier_size"),
    ({"tier": "x", "tier_options": {"engin": "auto"}}, "did you mean 'engine'"),
    ({"tier": "x", "tier_options": {"engine": "aio"}}, "auto, io_uring, threads"),
    ({"tier": "x", "tier_options": {"direct": True}}, "auto, require, off"),
    ({"tier": "x", "tier_options": {"write": "back"}}, "through, lazy"),
    ({"tier": "x", "tier_options": {"admit": 1.5}}, "admit"),
    ({"tier": "x", "tier_options": {"deadline": -1}}, "deadline"),
    ({"tier": "x", "tier_options": {"min_speed": "fast"}}, "min_speed"),
    ({"tier": "x", "tier_options": ["sync"]}, "a dict")], ids=str)
def test_wrong_options_are_refused_before_anything_is_made(new_name, tmp_path, monkeypatch, options,
                                                           words):
    monkeypatch.chdir(tmp_path)
    name = new_name()
    with pytest.raises(kvshm.InvalidArgument, match=words):
        kvshm.Arena.create(name, blocks=4, block_bytes=BLOCK, pin="off", **options)
    with pytest.raises(kvshm.ArenaNotFound):
        kvshm.Arena.attach(name)
    assert not list(tmp_path.iterdir())


def test_a_tier_that_cannot_be_had_leaves_nothing_attached(new_name, path):
    path.write_bytes(b"something of somebody else" * 1000)
    before = path.read_bytes()
    name = new_name()
    with pytest.raises(kvshm.LayoutMismatch, match=str(path)):
        kvshm.Arena.create(name, blocks=4, block_bytes=BLOCK, pin="off", tier=path,
                           tier_size="1MiB")
    assert path.read_bytes() == before
    with kvshm.Arena.attach(name) as arena:
        assert len(arena.processes()) == 1 and arena.tier is None


def test_an_arena_without_a_tier(make_arena):
    arena = make_arena()
    assert arena.tier is None
    store(arena, WANTED[:3]).release()
    with arena.match(WANTED, load=True) as lease:
        assert (len(lease), lease.promised, lease.loading, lease.failed) == (3, 3, 0, [])
        assert lease.wait(0) and list(lease.states) == [kvshm.LoadState.MEMORY] * 3
    with arena.match(keys(2, 9), load=True) as lease:
        assert not lease and lease.promised == 0 and lease.wait(0) and len(lease.states) == 0
    with arena.match(WANTED) as lease:
        assert lease.states is None and lease.promised == 3 and lease.wait(0)


def test_the_file_belongs_to_one_arena(tiered, new_name, path):
    first = tiered()
    with pytest.raises(kvshm.Busy, match=first.name) as refused:
        kvshm.Arena.create(new_name(), blocks=4, block_bytes=BLOCK, pin="off", tier=path)
    assert path.name in str(refused.value)


def test_another_block_size_is_refused(make_arena, tiered, path):
    tiered().close()
    with pytest.raises(kvshm.LayoutMismatch):
        make_arena(block_bytes=2 * BLOCK, tier=path)


def test_a_tier_opened_later(make_arena, path):
    arena = make_arena()
    arena.open_tier(path, "1MiB", engine="threads")
    assert eventually(lambda: arena.tier.state == kvshm.TierState.OK)
    with pytest.raises(kvshm.ArenaExists):
        arena.open_tier(path)
    on_disk_alone(arena, WANTED)


def test_several_files(tiered, tmp_path):
    paths = [tmp_path / f"part{i}" for i in range(3)]
    arena = tiered(tier=paths, tier_size="2MiB")
    assert arena.tier.files == 3 and arena.tier.path == ":".join(map(str, paths))
    wanted = keys(12, seed=3)
    on_disk_alone(arena, wanted)
    with arena.match(wanted, load=True) as lease:
        assert lease.wait(10) and len(lease) == 12 and right(lease, wanted)
    assert all(path.stat().st_blocks for path in paths)


def test_what_a_tier_says(arena, path):
    tier = arena.tier
    assert tier.engine == "threads" and tier.files == 1 and tier.path == str(path)
    assert tier.slots > 0 and tier.slot_bytes >= BLOCK and tier.ready == 0
    assert tier.image == f"{arena.name}-g3"
    store(arena, WANTED).release()
    assert arena.tier_drain(10)
    assert arena.tier.ready == 6 and arena.tier.queued == arena.tier.in_flight == 0
    assert (arena.presence(WANTED) == kvshm.Presence.G2 | kvshm.Presence.G3).all()
    with arena.match(WANTED) as lease:
        arena.tier_store(lease)
    assert arena.tier_drain(10)
    assert arena.stats().tier_stored_total == 6, "they were there already"
    assert arena.tier_clear() == 6 and arena.tier.ready == 0
    assert (arena.presence(WANTED) == kvshm.Presence.G2).all()


def test_only_what_is_named_goes_down(tiered):
    arena = tiered(tier_options={"engine": "threads", "write": "off"})
    lease = store(arena, WANTED)
    assert arena.tier_drain(10) and arena.tier.ready == 0
    assert arena.tier_store(lease.handles[:2]) == 2 and arena.tier_drain(10)
    assert arena.tier_store(lease.handle_array) == 6 and arena.tier_drain(10)
    assert arena.tier.ready == 6 and arena.stats().tier_present_total == 2
    gone = keys(1, seed=8)
    handle = store(arena, gone).handles[0]
    gc.collect()
    arena.evict(gone)
    arena.tier_store(handle)  # evicted before its turn
    assert arena.tier_drain(10) and arena.tier.ready == 6


# ---- loading -------------------------------------------------------------------------------------

def test_a_lease_that_loads(arena):
    store(arena, WANTED).release()
    assert arena.tier_drain(10)
    assert arena.evict(WANTED[3:]) == 3
    with arena.match(WANTED) as lease:
        assert len(lease) == 3, "without load it is as before"
    lease = arena.match(WANTED, load=True, tag="req")
    assert lease.promised == 6 and len(lease) >= 3
    assert bytes(lease.view(0)[:]) == content(WANTED[0]), "memory hits are usable at once"
    assert lease.wait(10) and lease.wait(0)
    assert len(lease) == 6 and lease.loading == 0 and lease.failed == [] and right(lease, WANTED)
    states = [int(state) for state in lease.states]
    assert states == [kvshm.LoadState.MEMORY] * 3 + [kvshm.LoadState.LOADED] * 3
    assert not lease.states.flags.writeable and lease.tag == "req"
    lease.trim(5)
    assert gauges(arena)["held"] == 5
    lease.release()
    assert gauges(arena)["held"] == 0
    assert (arena.presence(WANTED) == kvshm.Presence.G2 | kvshm.Presence.G3).all()
    assert arena.stats().misuse_total == 0


def test_a_damaged_slot_shortens_the_prefix(arena, path):
    on_disk_alone(arena, WANTED)
    assert damage(path, WANTED[4])
    with arena.match(WANTED, load=True) as lease:
        assert lease.wait(10)
        assert lease.promised == 6 and lease.failed == [4] and len(lease) == 4
        assert right(lease, WANTED[:4]) and list(lease.ids) == [h.id for h in lease.handles]
        with pytest.raises(IndexError):
            lease.view(4)
    assert arena.presence(WANTED)[4] == 0, "the slot was freed"
    assert arena.presence(WANTED)[5] & kvshm.Presence.G3
    assert gauges(arena)["held"] == 0
    with arena.match(WANTED, load=True) as lease:
        assert lease.promised == 4


def test_no_room_for_all(tiered):
    """As many as there is room for; what is held stays."""
    arena = tiered(blocks=8)
    on_disk_alone(arena, WANTED)
    held = store(arena, keys(5, seed=6))
    with arena.match(WANTED, load=True) as lease:
        assert lease.wait(10)
        assert len(lease) == lease.promised - len(lease.failed) == 3 and right(lease, WANTED[:3])
    held.release()


def test_it_dies_like_other_leases(arena):
    on_disk_alone(arena, WANTED)
    lost = arena.match(WANTED, load=True)
    del lost
    gc.collect()
    assert eventually(lambda: gauges(arena)["held"] == gauges(arena)["filling"] == 0)
    with pytest.raises(ZeroDivisionError), arena.match(WANTED, load=True):
        1 / 0
    assert eventually(lambda: gauges(arena)["held"] == gauges(arena)["filling"] == 0)
    lease = arena.match(WANTED, load=True)
    lease.release()
    lease.release()
    for use in (lambda: lease.wait(1), lambda: lease.view(0), lambda: asyncio.run(lease.loaded())):
        with pytest.raises(kvshm.Closed):
            use()
    assert lease.loading == 0


def test_the_arena_is_closed_meanwhile(tiered):
    arena = tiered()
    on_disk_alone(arena, WANTED)
    lease = arena.match(WANTED, load=True)
    arena.close()
    for use in (lambda: lease.wait(1), lambda: asyncio.run(lease.loaded())):
        try:
            use()  # if it had ended before
        except kvshm.Closed:
            pass
    with pytest.raises((kvshm.Closed, IndexError)):
        lease.view(0)
    lease.release()


def test_match_blocks_waits_for_the_disk(arena):
    on_disk_alone(arena, WANTED)
    assert kvshm.match_blocks(arena, WANTED) == []
    blocks = kvshm.match_blocks(arena, WANTED, load=10)
    assert [bytes(block.view()[:]) for block in blocks] == [content(key) for key in WANTED]


def test_what_does_not_load_computes(arena):
    """plan() and SingleFlight look at memory alone: what is on disk is missing to them."""
    on_disk_alone(arena, WANTED)
    with kvshm.plan(arena, WANTED, block_tokens=16, keep_last=False) as plan:
        assert plan.reused_blocks == 0 and list(plan.missing) == list(range(6))
    done = []

    def compute(fill, first):
        for i in range(len(fill)):
            fill.view(i)[:] = content(WANTED[first + i])
        done.append(len(fill))

    with kvshm.SingleFlight(arena).get(WANTED, compute, timeout=5) as lease:
        assert len(lease) == 6 and sum(done) == 6


# ---- threads, signals, asyncio -------------------------------------------------------------------

def test_many_threads_wait_for_one_lease(arena):
    for n in range(20):
        wanted = keys(6, seed=100 + n)
        on_disk_alone(arena, wanted)
        lease, seen = arena.match(wanted, load=True), []
        threads = [threading.Thread(target=lambda lease=lease: seen.append(lease.wait(10)))
                   for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert seen == [True] * 4 and len(lease) == 6 and right(lease, wanted)
        lease.release()
        assert gauges(arena)["held"] == 0


def test_released_while_others_wait(arena):
    for n in range(50):
        wanted = keys(6, seed=200 + n)
        on_disk_alone(arena, wanted)
        lease, seen = arena.match(wanted, load=True), []

        def wait(lease=lease, seen=seen):
            try:
                seen.append(lease.wait(10))
            except kvshm.Closed:
                seen.append("closed")

        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        lease.release()
        for thread in threads:
            thread.join(20)
        assert len(seen) == 3 and set(seen) <= {True, "closed"}
        assert eventually(lambda: gauges(arena)["held"] == gauges(arena)["filling"] == 0)


def test_asyncio(arena):
    async def load(n):
        wanted = keys(2, seed=300 + n)
        with arena.match(wanted, load=True) as lease:
            assert await lease.loaded() == 2
            assert right(lease, wanted)

    async def all_of_them():
        await asyncio.gather(*(load(n) for n in range(8)))

    for n in range(8):
        on_disk_alone(arena, keys(2, seed=300 + n))
    asyncio.run(all_of_them())
    assert gauges(arena)["held"] == 0


def test_several_await_one_lease(arena):
    on_disk_alone(arena, WANTED)

    async def run():
        with arena.match(WANTED, load=True) as lease:
            return await asyncio.gather(*(lease.loaded() for _ in range(5))), await lease.loaded()

    assert asyncio.run(run()) == ([6] * 5, 6)


def test_an_await_is_cancelled_at_any_moment(arena):
    """Nothing leaks: neither the lease, nor the future, nor the library's notice."""
    on_disk_alone(arena, WANTED)

    async def run(n):
        arena.evict(WANTED)
        lease = arena.match(WANTED, load=True)
        task = asyncio.ensure_future(lease.loaded())
        for _ in range(n % 4):
            await asyncio.sleep(0)
        if n % 3:
            await asyncio.sleep(n % 7 * 0.0005)
        if n % 5 == 0:
            lease.release()
        task.cancel()
        try:
            await task
        except (asyncio.CancelledError, kvshm.Closed):
            pass

    for n in range(100):
        asyncio.run(run(n))
    gc.collect()
    assert eventually(lambda: gauges(arena)["held"] == gauges(arena)["filling"] == 0)
    from kvshm.loads import Load
    assert not [one for one in gc.get_objects() if isinstance(one, Load)]


def test_the_loop_is_closed_before_the_end(arena):
    on_disk_alone(arena, WANTED)
    loop = asyncio.new_event_loop()
    lease = arena.match(WANTED, load=True)
    coroutine = lease.loaded()

    async def begin():
        task = asyncio.ensure_future(coroutine)
        await asyncio.sleep(0)
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    assert lease.wait(10) and len(lease) == 6
    lease.release()
    del task
    coroutine.close()


def test_the_interpreter_ends_while_blocks_load(arena, worker):
    """With an await under way: no thread of the library wants the GIL of an interpreter that has
    ended."""
    for n in range(5):
        wanted = keys(8, seed=400 + n)
        on_disk_alone(arena, wanted)
        one = worker("""
            import asyncio, sys, time, kvshm
            import numpy as np
            arena = kvshm.Arena.attach(sys.argv[1], tier=sys.argv[2],
                                       tier_options={"engine": "threads"})
            while arena.tier.state != kvshm.TierState.OK:
                time.sleep(0.001)
            keys = np.frombuffer(bytes.fromhex(sys.argv[3]), np.uint8).reshape(-1, 16)
            lease = arena.match(keys, load=True)
            async def begin():
                global task
                task = asyncio.ensure_future(lease.loaded())
                await asyncio.sleep(0)
            loop = asyncio.new_event_loop()
            loop.run_until_complete(begin())
            say(lease.promised)
        """, arena.name, arena.tier.path, wanted.tobytes().hex())
        assert one.hear() == 8
        one.process.stdin.close()
        assert one.process.wait(20) == 0
        assert eventually(lambda: gauges(arena)["held"] == gauges(arena)["filling"] == 0)


def test_a_forked_child_may_drop_it(arena):
    on_disk_alone(arena, WANTED)
    lease = arena.match(WANTED, load=True)
    ended = lease.states is not None and "loading" not in repr(lease)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                code = 0 if lease.wait(1) and ended else 2
            except kvshm.Forked:
                code = 0
            lease.release()
            del lease
            gc.collect()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lease.wait(10) and len(lease) == 6
    lease.release()


# ---- over restarts -------------------------------------------------------------------------------

def test_everything_ends_and_begins_again(tiered, path):
    """The image and the arena are gone, as after a reboot; the file brings it all back."""
    arena = tiered()
    wanted = keys(30, seed=7)
    for some in np.split(wanted, 5):
        store(arena, some).release()
        assert arena.tier_drain(10)
    image = arena.tier.image
    arena.close()
    kvshm.remove(arena.name)
    for name in (image,):
        try:
            kvshm.remove(name, force=True)
        except kvshm.ArenaNotFound:
            pass
    again = tiered(blocks=32)
    assert eventually(lambda: again.tier.rebuild_done == again.tier.rebuild_total)
    assert again.tier.ready == 30
    with again.match(wanted, load=True) as lease:
        assert lease.wait(10) and len(lease) == 30 and right(lease, wanted)


def test_s23_what_lookup_promised_load_delivers(tiered, worker, path):
    """With a hold, all that was promised loads while others push the cache through twice; a failure
    is told block by block. Without one it is a hint, and the load returns the shorter prefix."""
    arena = tiered(blocks=24)
    wanted = keys(8, seed=23)
    on_disk_alone(arena, wanted)

    seeds = itertools.count()

    def push():
        for _ in range(6):
            store(arena, keys(8, seed=2300 + next(seeds)), timeout=5).release()

    hold = arena.match(wanted, load=True)
    for _ in range(2):
        push()
        time.sleep(0.3)
    assert hold.wait(10) and len(hold) == hold.promised == 8 and right(hold, wanted)
    hold.release()
    arena.evict(wanted)
    assert damage(path, wanted[5])
    hold = arena.match(wanted, load=True)
    push()
    assert hold.wait(10) and hold.failed == [5] and len(hold) == 5 and right(hold, wanted[:5])
    hold.release()
    # Without: presence said so, and by the time of the load some are gone from everywhere.
    hint = arena.presence(wanted) != 0
    assert hint[:5].all()
    assert arena.tier_drain(10)
    arena.evict(wanted)
    arena.tier_clear()
    with arena.match(wanted, load=True) as lease:
        assert lease.promised == 0


def test_queues_as_python_sees_them(new_name, tmp_path):
    """Offered by one that does not move, moved by another one; taken back, flushed, asked ahead."""
    name, path = new_name(), str(tmp_path / "file.kvtier")
    offers = kvshm.Arena.open(name, blocks=32, block_bytes=4096, tier=path, tier_size="1MiB",
                              tier_options={"mover": "off", "write": "lazy", "age": 60})
    wanted = keys(8)
    held = store(offers, wanted)
    assert offers.tier.mover == "" and offers.tier.queued == 8
    assert offers.tier_drain(0.05) is False  # nobody moves
    assert offers.tier_cancel(held.handles[6:]) == 2
    assert offers.tier_cancel(held.handles[6:]) == 0
    moves = kvshm.Arena.open(name, blocks=32, block_bytes=4096, tier=path,
                             tier_options={"write": "lazy", "age": 60})
    assert offers.tier_drain(20)
    assert list(offers.tier_status(wanted)) == [kvshm.TierStatus.STORED] * 6 + [0] * 2
    told = offers.tier
    assert (told.mover, told.mover_pid, told.queued) == ("other", os.getpid(), 0)
    assert moves.tier.mover == "this"
    held.release()
    assert offers.clear() == 8
    assert offers.prefetch(wanted) == 8
    deadline = time.monotonic() + 20
    while sum(offers.presence(wanted) & 1) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sum(offers.presence(wanted) & 1) == 6
    assert offers.stats().tier_prefetched_total == 6
    assert offers.stats().tier_cancelled_total == 2
    moves.close()
    offers.close()


@pytest.mark.parametrize("options, words", [
    ({"low": 1.5}, "share from 0 to 1"), ({"low": "few"}, "share"), ({"mover": "on"}, "auto, off"),
    ({"gather": "lots"}, "gather"), ({"age": -1}, "age"), ({"queue": 5000}, "queue 0-2048")],
    ids=str)
def test_options_of_the_queues(new_name, tmp_path, options, words):
    with pytest.raises(kvshm.InvalidArgument, match=words):
        kvshm.Arena.open(new_name(), blocks=4, block_bytes=4096, tier=str(tmp_path / "f"),
                         tier_size="1MiB", tier_options=options)
