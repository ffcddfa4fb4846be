# SPDX-License-Identifier: Apache-2.0
"""Opening, creating, attaching to and removing arenas."""
import threading
import time

import kvshm
import pytest
from support import shm_dir
from support.arenas import content, gauges, keys, start_together, store


def test_open_creates_and_attaches(new_name):
    name = new_name()
    first = kvshm.Arena.open(name, blocks=8, block_bytes="4KiB", label="one")
    second = kvshm.Arena.open(name, blocks=8, block_bytes=4096)
    third = kvshm.Arena.attach(name)  # takes what is there
    assert first.info().created and not second.info().created
    assert (third.block_bytes, third.blocks) == (4096, 8)
    assert len({first.slot, second.slot, third.slot}) == 3
    assert [p.label for p in first.processes()][0] == "one"
    store(first, keys(1)).release()
    with third.match(keys(1)) as hit:
        assert bytes(hit.view(0)) == content(keys(1)[0])
    for arena in (first, second, third):
        arena.close()


def test_strict_forms(new_name):
    name = new_name()
    with pytest.raises(kvshm.ArenaNotFound):
        kvshm.Arena.attach(name)
    with kvshm.Arena.create(name, blocks=1, block_bytes=64) as arena:
        with pytest.raises(kvshm.ArenaExists):
            kvshm.Arena.create(name, blocks=1, block_bytes=64)
        assert arena.blocks == 1
    with pytest.raises(TypeError, match="block_byte"):
        kvshm.Arena.attach(name, block_byte=64)


def test_size_or_blocks(new_name):
    with kvshm.Arena.create(new_name(), size="4MiB", block_bytes=4096) as arena:
        info = arena.info()
        assert info.bytes == 4 << 20
        assert info.blocks * 4096 + info.metadata_bytes <= 4 << 20
        assert info.blocks > 200
    with pytest.raises(kvshm.InvalidArgument):
        kvshm.Arena.create(new_name())
    with pytest.raises(kvshm.InvalidArgument):
        kvshm.Arena.create(new_name(), blocks=1, block_bytes=100)  # no multiple of 64


@pytest.mark.parametrize("text, value", [
    ("8GiB", 8 << 30), ("2MiB", 2 << 20), ("512", 512), ("1.5K", 1536), ("7 B", 7), ("3T", 3 << 40),
    (4096, 4096)])
def test_sizes(text, value):
    assert kvshm.parse_size(text) == value


@pytest.mark.parametrize("text", ["8GB", "many", "-1", "", "1e9", -5, 2**64, 1.5, float("nan"),
                                  b"8", "8 GiBs"])
def test_refused_sizes(text):
    with pytest.raises(kvshm.InvalidArgument):
        kvshm.parse_size(text)


@pytest.mark.parametrize("options", [
    {"pin": "maybe"}, {"huge": 1}, {"numa": "near"}, {"numa": None}, {"numa": 1.5},
    {"label": "a\0b"}, {"group": "no-such-group-here"}, {"timeout": -1},
    {"timeout": None}], ids=str)
def test_refused_options(new_name, options):
    name = new_name()
    with pytest.raises(kvshm.InvalidArgument):
        kvshm.Arena.create(name, blocks=1, block_bytes=64, **options)
    assert not (shm_dir / f"kvshm.{name}").exists()


def test_an_arena_is_not_made_by_hand():
    for make in (kvshm.Arena, lambda: kvshm.Arena.__new__(kvshm.Arena), lambda: kvshm.Arena(1)):
        with pytest.raises(TypeError, match="open"):
            make()


def test_another_directory(new_name, tmp_path):
    name = new_name()
    with kvshm.Arena.create(name, blocks=1, block_bytes=64, dir=str(tmp_path)) as arena:
        assert arena.path == str(tmp_path / f"kvshm.{name}")
        with pytest.raises(kvshm.ArenaNotFound):
            kvshm.Arena.attach(name)
        kvshm.Arena.attach(name, dir=str(tmp_path)).close()
    kvshm.remove(name, dir=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_auto_name():
    one, two = kvshm.Identity(model="one", weights="w"), kvshm.Identity(model="two", weights="w")
    assert kvshm.auto_name(one) == kvshm.auto_name(kvshm.Identity(model="one", weights="w"))
    assert len({kvshm.auto_name(one), kvshm.auto_name(two), kvshm.auto_name()}) == 3
    arena = kvshm.Arena.open("auto", identity=one, blocks=1, block_bytes=64)
    try:
        assert arena.name == kvshm.auto_name(one)
        arena.close()
    finally:
        kvshm.remove(arena.name)


def test_racing_processes_make_one_arena(new_name, worker):
    name = new_name()
    racers = [worker("""
        import sys, time, kvshm
        start = hear()
        while time.monotonic() < start:
            pass
        arena = kvshm.Arena.open(sys.argv[1], blocks=64, block_bytes=65536)
        say([arena.info().created, arena.info().uuid.hex(), arena.slot])
        hear()
    """, name) for _ in range(5)]
    start = start_together(5, 1.0)
    for one in racers:
        one.say(start)
    seen = [one.hear() for one in racers]
    assert sum(created for created, _, _ in seen) == 1
    assert len({uuid for _, uuid, _ in seen}) == 1 and len({slot for _, _, slot in seen}) == 5


def test_an_unfinished_object(new_name):
    """What a creator leaves that dies in its first steps: attach waits for the limit, open mends
    it."""
    name = new_name()
    (shm_dir / f"kvshm.{name}").touch(mode=0o600)
    start = time.monotonic()
    with pytest.raises(kvshm.ArenaNotReady):
        kvshm.Arena.attach(name, timeout=0.5)
    assert 0.3 < time.monotonic() - start < 5
    with kvshm.Arena.open(name, blocks=2, block_bytes=64, timeout=5) as arena:
        assert arena.info().created


def test_something_else_under_the_name(new_name):
    name = new_name()
    (shm_dir / f"kvshm.{name}").write_bytes(b"no arena" * 1000)
    for way in (kvshm.Arena.open, kvshm.Arena.attach):
        with pytest.raises(kvshm.LayoutMismatch):
            way(name, blocks=2, block_bytes=64)
    assert (shm_dir / f"kvshm.{name}").read_bytes() == b"no arena" * 1000


def test_remove_refuses_while_somebody_is_attached(arena):
    with pytest.raises(kvshm.Busy):
        kvshm.remove(arena.name)
    store(arena, keys(1)).release()
    with pytest.raises(kvshm.ArenaNotFound):
        kvshm.remove("no-such-arena")


def test_a_removed_arena_says_so_and_what_is_held_stays(arena):
    lease = store(arena, keys(2))
    view = lease.view(0)
    fill = arena.allocate(1)
    kvshm.remove(arena.name, force=True)
    for call in (lambda: arena.match(keys(2)), lambda: arena.allocate(1),
                 lambda: arena.presence(keys(1)), arena.clear, arena.reap):
        with pytest.raises(kvshm.ArenaReplaced, match="open again"):
            call()
    assert bytes(view) == content(keys(2)[0])
    view.release()
    lease.release()
    fill.abort()
    with kvshm.Arena.open(arena.name, blocks=1, block_bytes=64) as fresh:
        assert fresh.blocks == 1 and not fresh.presence(keys(1)).any()


def test_closed_is_closed(arena):
    lease, fill = store(arena, keys(2)), arena.allocate(1)
    arena.close()
    for call in (lambda: arena.match(keys(2)), lambda: arena.allocate(1), lambda: arena.stats(),
                 lambda: arena.wait((0, 1), 1.0), lambda: arena.info(), arena.__enter__,
                 lambda: lease.view(0), lambda: arena.upgrade((0, 1)), arena.is_valid):
        with pytest.raises(kvshm.Closed):
            call()
    lease.release()  # close gave it back
    fill.abort()
    assert arena.closed and "closed" in repr(arena)


def test_close_gives_everything_back(new_name):
    name = new_name()
    watcher = kvshm.Arena.create(name, blocks=8, block_bytes=64)
    other = kvshm.Arena.attach(name)
    lease, fill = store(other, keys(2)), other.allocate(3)
    assert (gauges(watcher)["held"], gauges(watcher)["filling"]) == (2, 3)
    other.close()
    assert (gauges(watcher)["inactive"], gauges(watcher)["free"]) == (2, 6)
    assert len(watcher.processes()) == 1
    del lease, fill
    watcher.close()


def test_close_ends_the_waits_of_other_threads(make_arena):
    arena = make_arena()
    handle = arena.allocate(16).handles[0]  # the Fill died at once; a wait for space needs one
    fill = arena.allocate(16)
    ended = []

    def wait(call):
        try:
            call()
        except kvshm.Closed as error:
            ended.append(error)

    threads = [threading.Thread(target=wait, args=(call,)) for call in (
        lambda: arena.wait(fill.handles[0], 60), lambda: arena.allocate(1, timeout=60))]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    start = time.monotonic()
    arena.close()
    for thread in threads:
        thread.join(10)
    assert len(ended) == 2 and time.monotonic() - start < 5
    assert handle.id < 16


def test_all_slots_taken(new_name):
    name = new_name()
    first = kvshm.Arena.create(name, blocks=2, block_bytes=64, helper=False)
    others = [kvshm.Arena.attach(name, helper=False) for _ in range(47)]
    with pytest.raises(kvshm.NoSlot):
        kvshm.Arena.attach(name, helper=False)
    others.pop().close()
    others.append(kvshm.Arena.attach(name, helper=False))
    assert len(first.processes()) == 48
    for arena in (first, *others):
        arena.close()


def test_a_mount_that_is_too_small(new_name):
    name = new_name()
    with pytest.raises(kvshm.NoSpace):
        kvshm.Arena.create(name, size="64TiB", block_bytes="2MiB")
    assert not (shm_dir / f"kvshm.{name}").exists()
