# SPDX-License-Identifier: Apache-2.0
"""Whatever is handed in: an error of its own, nothing lost, and no signal ends the process.

The million random inputs to the C API under AddressSanitizer are cpp/tests/bad_input_test.cpp.
"""
import os
import random
import threading

import kvshm
import numpy as np
import pytest
from support import shm_dir
from support.oracle import raw_keys, store, verify

IDENT = kvshm.Identity(model="bad-input", weights="w")


@pytest.fixture
def arena(arena_name):
    with kvshm.Arena.create(arena_name, blocks=16, block_bytes=1024, identity=IDENT,
                            helper=False) as one:
        kept = store(one, raw_keys(0, 4))
        yield one
        # Nothing was lost, whatever the test did.
        assert verify(kept, raw_keys(0, 4)) == []
        kept.release()
        assert one.is_valid() == []


def raises(error, call, *texts):
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error, f"{type(raised.value)} is not {error}"
    for text in texts:
        assert text in str(raised.value), str(raised.value)
    return raised.value


# Names


@pytest.mark.parametrize("name", ["", "A", "x" * 64, "a/b", "..", "-a", "_a", "a b", "ä", "a.b",
                                  "a\n", "/tmp/x", "a" * 5000, None, b"abc"], ids=repr)
def test_senseless_names(name):
    for call in (kvshm.Arena.open, kvshm.Arena.create, kvshm.Arena.attach):
        with pytest.raises(kvshm.InvalidArgument, match="name"):
            call(name, blocks=1, block_bytes=64)
    with pytest.raises(kvshm.InvalidArgument):
        kvshm.remove(name if name is not None else "A B")


def test_unknown_names(arena_name, tmp_path):
    raises(kvshm.ArenaNotFound, lambda: kvshm.Arena.attach(arena_name), arena_name, "kvshm list")
    raises(kvshm.ArenaNotFound, lambda: kvshm.remove(arena_name), arena_name)
    raises(kvshm.ArenaNotFound,
           lambda: kvshm.Arena.open(arena_name, blocks=1, block_bytes=64,
                                    dir=tmp_path / "missing"), "missing")
    raises(kvshm.ArenaExists, lambda: (kvshm.Arena.create(arena_name, blocks=1, block_bytes=64),
                                       kvshm.Arena.create(arena_name, blocks=1, block_bytes=64)))


# Sizes and options (units are in test_s37_memory.py)


@pytest.mark.parametrize("options", [
    {}, {"size": "1MiB"}, {"blocks": -1}, {"blocks": 1.5}, {"blocks": 2 ** 32},
    {"blocks": 2 ** 64}, {"blocks": "many"}, {"blocks": 16, "block_bytes": 63},
    {"blocks": 16, "block_bytes": -64}, {"blocks": 1, "block_bytes": 2 ** 57},
    {"blocks": 2 ** 31, "block_bytes": 2 ** 40}, {"size": 2 ** 57, "block_bytes": 64},
    {"size": "16MiB", "block_bytes": "32MiB"}, {"size": "3MiB", "blocks": 1000,
                                                "block_bytes": 4096},
    {"size": "9" * 400 + ".5GiB", "block_bytes": 64}, {"size": "9" * 5000, "block_bytes": 64},
    {"blocks": 1, "block_bytes": 64, "pin": "maybe"}, {"blocks": 1, "block_bytes": 64, "huge": 1},
    {"blocks": 1, "block_bytes": 64, "timeout": -1}, {"blocks": 1, "block_bytes": 64,
                                                      "timeout": float("nan")},
    {"blocks": 1, "block_bytes": 64, "timeout": float("inf")},
    {"blocks": 1, "block_bytes": 64, "timeout": "soon"}, {"blocks": 1, "block_bytes": 64,
                                                          "label": "a\0b"},
    {"blocks": 1, "block_bytes": 64, "numa": 1.5}, {"blocks": 1, "block_bytes": 64,
                                                    "group": "no such group"},
], ids=lambda o: ",".join(f"{k}={str(v)[:12]}" for k, v in o.items()))
def test_senseless_options(arena_name, options):
    for call in (kvshm.Arena.create, kvshm.Arena.open):
        raises(kvshm.InvalidArgument, lambda: call(arena_name, **options))
    assert not (shm_dir / f"kvshm.{arena_name}").exists()


def test_unknown_options(arena_name):
    for call in (kvshm.Arena.create, kvshm.Arena.open, kvshm.Arena.attach):
        with pytest.raises(TypeError, match="no_such_option"):
            call(arena_name, no_such_option=1)


# What lies in the arena's place


@pytest.mark.parametrize("length", [1, 7, 8, 63, 4095, 4096, 5000, 100_000, 2_400_000])
def test_random_file_in_its_place(arena_name, length):
    path = shm_dir / f"kvshm.{arena_name}"
    chance = random.Random(length)
    for content in (chance.randbytes(length), b"\xff" * length, b"\n" * length):
        path.write_bytes(content)
        for call in (kvshm.Arena.attach, kvshm.Arena.open):
            raises(kvshm.LayoutMismatch,
                   lambda: call(arena_name, blocks=16, block_bytes=1024, timeout=0.3),
                   str(path), "kvshm rm --force")
        assert path.read_bytes() == content, "not touched"
    kvshm.remove(arena_name, force=True)
    assert not path.exists()


def test_truncated_file_in_its_place(arena_name):
    with kvshm.Arena.create(arena_name, blocks=16, block_bytes=1024, helper=False) as arena:
        store(arena, raw_keys(0, 8)).release()
    path = shm_dir / f"kvshm.{arena_name}"
    whole = path.read_bytes()
    for length in (1, 100, 4095, 4096, 8192, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(kvshm.LayoutMismatch) as raised:
            kvshm.Arena.attach(arena_name, timeout=0.3)
        assert str(length) in str(raised.value)
    path.write_bytes(whole)  # a byte-for-byte copy is sound
    with kvshm.Arena.attach(arena_name, helper=False) as arena:
        with arena.match(raw_keys(0, 8)) as hit:
            assert len(hit) == 8 and verify(hit, raw_keys(0, 8)) == []


def test_all_zero_or_empty(arena_name):
    """Looks like an arena in the making whose creator is gone: attach waits, open makes it."""
    path = shm_dir / f"kvshm.{arena_name}"
    for content in (b"", bytes(10_000)):
        path.write_bytes(content)
        raises(kvshm.ArenaNotReady, lambda: kvshm.Arena.attach(arena_name, timeout=0.2), "creator")
        with kvshm.Arena.open(arena_name, blocks=4, block_bytes=64, helper=False) as arena:
            assert arena.is_valid() == [] and arena.info().created
        kvshm.remove(arena_name)


@pytest.mark.parametrize("what", ["folder", "symbolic link", "named pipe"])
def test_no_file_in_its_place(arena_name, tmp_path, what):
    path = shm_dir / f"kvshm.{arena_name}"
    try:
        if what == "folder":
            path.mkdir()
        elif what == "symbolic link":  # not followed: it could lead to somebody's file
            victim = tmp_path / "victim"
            victim.write_bytes(b"precious" * 1000)
            path.symlink_to(victim)
        else:
            os.mkfifo(path)
        for call in (kvshm.Arena.attach, kvshm.Arena.open):
            with pytest.raises(kvshm.Error) as raised:
                call(arena_name, blocks=4, block_bytes=64, timeout=0.3)
            assert arena_name in str(raised.value)
        with pytest.raises(kvshm.ArenaExists):
            kvshm.Arena.create(arena_name, blocks=4, block_bytes=64)
        if what == "symbolic link":
            assert victim.read_bytes() == b"precious" * 1000
    finally:
        if what == "folder":
            path.rmdir()
        else:
            path.unlink(missing_ok=True)


def test_other_identity_layout_version(arena):
    """Each its own error; the layouts in detail are in test_s81_versions.py."""
    raises(kvshm.IdentityMismatch, lambda: kvshm.Arena.attach(
        arena.name, identity=kvshm.Identity(model="other", weights="w")), "other", "bad-input")
    raises(kvshm.LayoutMismatch, lambda: kvshm.Arena.attach(arena.name, block_bytes=2048),
           "1024", "2048")
    arena.stats()


# Ids, handles, keys


IDS = [16, 17, 2 ** 31, 2 ** 32 - 1, -1, 2 ** 32, 2 ** 70, "x", None, 1.5]


@pytest.mark.parametrize("number", IDS, ids=str)
def test_ids_out_of_range(arena, number):
    handle = (number, 1)
    calls = [lambda: arena.upgrade(handle), lambda: arena.pin([handle]),
             lambda: arena.join([handle]), lambda: arena.wait(handle, 0.01),
             lambda: arena.set_priority(handle, 1), lambda: arena.set_no_cache(handle),
             lambda: arena.allocate(1, after=handle)]
    for call in calls:
        with pytest.raises((kvshm.InvalidArgument, kvshm.Misuse, kvshm.ArenaNotFound)):
            if call() is None:
                raise kvshm.ArenaNotFound("None is an answer, too")
    raises(kvshm.InvalidArgument, lambda: arena.block(number))


@pytest.mark.parametrize("number", [1.0, 1.5, "1", None, 2 ** 32], ids=repr)
def test_numbers_that_are_none(arena, number):
    """Above all nothing is cut off to an integer that names something else."""
    with arena.allocate(1, parts=2, timeout=0) as fill, store(arena, raw_keys(60, 2)) as lease:
        for call in (lambda: arena.block(number), lambda: arena.allocate(1, parts=number),
                     lambda: arena.allocate(1, tenant=number), lambda: fill.begin(0, number),
                     lambda: arena.set_priority(lease.handle(0), number),
                     lambda: fill.arrive(0, number), lambda: lease.handle(number),
                     lambda: lease.view(number), lambda: lease.trim(number),
                     lambda: fill.view(number), lambda: fill.copy_in(number, b"x"),
                     lambda: arena.create_object(b"k" * 16, 8, tenant=number),
                     lambda: arena.upgrade((number, 1)), lambda: arena.allocate(number)):
            with pytest.raises((kvshm.InvalidArgument, TypeError, IndexError, OverflowError)):
                call()
        if number is not None:  # None is a priority: the default
            with pytest.raises((kvshm.InvalidArgument, TypeError)):
                arena.allocate(1, priority=number)
        assert len(lease) == 2
    assert arena.stats().blocks_filling == 0


@pytest.mark.parametrize("handle", [(), (1,), (1, 2, 3), 5, None, "ab", (0, -1), (0, 2 ** 64),
                                    ("a", "b"), object], ids=str)
def test_no_handles(arena, handle):
    for call in (arena.upgrade, lambda h: arena.wait(h, 0.01), lambda h: arena.set_priority(h, 1)):
        raises(kvshm.InvalidArgument, lambda: call(handle), "handle")


@pytest.mark.parametrize("keys", [
    None, 5, "abc", object(), b"15 bytes of it!", [b"short"], [b"x" * 17], [5], [None],
    np.zeros((3, 15), np.uint8), np.zeros((2, 8), np.uint16), np.zeros(16, np.float32),
    np.zeros((2, 2, 8), np.uint8)[:, :, :3], [[1, 2]],
], ids=lambda k: type(k).__name__ + str(getattr(k, "shape", k))[:12])
def test_no_keys(arena, keys):
    calls = [arena.match, arena.match_scattered, arena.scan, arena.presence, arena.evict]
    for call in calls:
        with pytest.raises((kvshm.InvalidArgument, TypeError)):
            call(keys)
    with pytest.raises((kvshm.InvalidArgument, TypeError)):
        arena.allocate(1, keys=keys if keys is not None else 5)


def test_the_zero_key(arena):
    zero = np.zeros((1, 16), np.uint8)
    for call in (arena.match, arena.match_scattered, arena.scan, arena.presence, arena.evict,
                 lambda k: arena.allocate(1, keys=k)):
        try:
            result = call(zero)
        except kvshm.InvalidArgument:
            continue
        found = result if isinstance(result, (int, np.ndarray)) else getattr(result, "hits", None)
        assert not np.any(found), "it is no key, so it finds nothing"
    assert arena.stats().blocks_filling == 0


@pytest.mark.parametrize("n", [-1, 17, 2 ** 31, 2 ** 32, 2 ** 70])
def test_numbers_of_blocks(arena, n):
    if n < 0:
        raises(kvshm.InvalidArgument, lambda: arena.allocate(n), "-1")
    else:
        raises(kvshm.TooLarge, lambda: arena.allocate(n), "16")


@pytest.mark.parametrize("options", [{"parts": 0}, {"parts": 33}, {"priority": 0},
                                     {"priority": 101}, {"tenant": 256}, {"tenant": 2 ** 31},
                                     {"timeout": -1}, {"timeout": float("nan")}], ids=str)
def test_senseless_fill_options(arena, options):
    raises(kvshm.InvalidArgument, lambda: arena.allocate(1, **options))
    assert arena.stats().blocks_filling == 0


def test_offsets_parts_and_order(arena):
    with arena.allocate(2, keys=raw_keys(50, 2), parts=2) as fill:
        raises(kvshm.InvalidArgument, lambda: fill.copy_in(0, b"x" * 1025))
        raises(kvshm.InvalidArgument, lambda: fill.copy_in(0, b"x", 1024))
        raises(kvshm.InvalidArgument, lambda: fill.copy_in(0, b"x", -1))
        with pytest.raises(IndexError):
            fill.copy_in(2, b"x")
        raises(kvshm.Misuse, lambda: fill.arrive(0, 0))  # not begun
        fill.begin(0, 0)
        raises(kvshm.Misuse, lambda: fill.begin(0, 0))  # twice
        with pytest.raises((kvshm.InvalidArgument, kvshm.Misuse)):
            fill.begin(0, 2)
        raises(kvshm.Misuse, fill.publish)  # parts are missing
        raises(kvshm.InvalidArgument, lambda: fill.register("replace"))
        raises(kvshm.InvalidArgument, lambda: fill.register(keys=raw_keys(0, 3)))
    assert arena.stats().blocks_filling == 0


# Closed, forked, threads


def test_a_closed_arena(arena_name):
    arena = kvshm.Arena.create(arena_name, blocks=8, block_bytes=64, helper=False)
    lease = store(arena, raw_keys(0, 2))
    fill = arena.allocate(1)
    handle = lease.handle(0)
    arena.close()
    arena.close()
    for call in (lambda: arena.match(raw_keys(0, 1)), lambda: arena.allocate(1), arena.stats,
                 lambda: arena.presence(raw_keys(0, 1)), lambda: arena.upgrade(handle), arena.info,
                 arena.is_valid, arena.reap, arena.tick, arena.clear, arena.processes,
                 lambda: arena.evict(raw_keys(0, 1)), lambda: arena.wait(handle, 1),
                 lambda: arena.join(handle), lambda: arena.pin(handle), lambda: arena.block(0),
                 lambda: lease.view(0), lambda: fill.view(0), lambda: lease.handle(0),
                 lambda: fill.copy_in(0, b"x"), fill.register):
        with pytest.raises((kvshm.Closed, kvshm.InvalidArgument)) as raised:
            call()
        assert isinstance(raised.value, kvshm.Closed) or "no keys" in str(raised.value)
    lease.release()
    fill.abort()
    with kvshm.Arena.attach(arena_name, helper=False) as again:
        assert again.stats().blocks_held == again.stats().blocks_filling == 0


@pytest.mark.crash
def test_a_forked_child(player, arena_name):
    one = player()
    one.do(f"""
        a = kvshm.Arena.create({arena_name!r}, blocks=8, block_bytes=64)
        lease = store(a, raw_keys(0, 2))
        view = lease.view(0)
        fill = a.allocate(1, keys=raw_keys(5, 1))
        handle = lease.handle(0)
        def in_child():
            wrong = []
            for what, call in {{
                    "match": lambda: a.match(raw_keys(0, 1)), "allocate": lambda: a.allocate(1),
                    "stats": a.stats, "presence": lambda: a.presence(raw_keys(0, 1)),
                    "upgrade": lambda: a.upgrade(handle), "view": lambda: lease.view(0),
                    "buffer": lambda: bytes(view), "copy_in": lambda: fill.copy_in(0, b"x"),
                    "register": fill.register, "wait": lambda: a.wait(handle, 1),
                    "reap": a.reap, "evict": lambda: a.evict(raw_keys(0, 1))}}.items():
                try:
                    call()
                    wrong.append(what + " worked")
                except kvshm.Forked:
                    pass
                except Exception as error:
                    wrong.append(f"{{what}}: {{type(error).__name__}}: {{error}}")
            view.release(); lease.release(); fill.abort(); a.close()    # it owns nothing
            b = kvshm.Arena.attach(a.name)
            if len(b.match(raw_keys(0, 2))) != 2:
                wrong.append("attached anew: a miss")
            b.close()
            return wrong
        receive, send = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(send, "; ".join(in_child()).encode() or b"fine")
            except BaseException as error:
                os.write(send, repr(error).encode())
            finally:
                os._exit(0)
        os.close(send)
        text = os.read(receive, 100_000).decode()
        status = os.waitpid(pid, 0)[1]
    """)
    assert one.get("[text, status]") == ["fine", 0]
    assert one.get("verify(lease, raw_keys(0, 2))") == [], "the parent lost nothing"
    one.do("view.release(); write(a, fill, raw_keys(5, 1)); fill.register().release()")
    assert one.get("a.is_valid()") == []


@pytest.mark.crash
def test_a_forked_child_closes_what_it_inherited(player, arena_name):
    """Also while views live: it owns no memory that they could point to."""
    one = player()
    one.do(f"""
        a = kvshm.Arena.create({arena_name!r}, blocks=8, block_bytes=64)
        lease = store(a, raw_keys(0, 2))
        view = lease.view(0)
        memory = memoryview(lease.view(1))
        thing = a.create_object(b"k" * 16, 100)
        receive, send = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                a.close()
                assert a.closed
                a.close()
                with kvshm.Arena.attach(a.name) as b:
                    assert len(b.match(raw_keys(0, 2))) == 2
                for call in (lambda: bytes(view), lambda: a.match(raw_keys(0, 1))):
                    try:
                        call()
                        raise AssertionError("worked")
                    except (kvshm.Forked, kvshm.Closed):
                        pass
                view.release(); lease.release(); thing.close()
                os.write(send, b"fine")
            except BaseException as error:
                os.write(send, repr(error).encode())
            finally:
                os._exit(0)
        os.close(send)
        text = os.read(receive, 100_000).decode()
        status = os.waitpid(pid, 0)[1]
    """)
    assert one.get("[text, status]") == ["fine", 0]
    assert one.fails("a.close()").kind == "BufferError", "in the parent they are in the way"
    assert one.get("verify(lease, raw_keys(0, 2))") == [], "the parent lost nothing"
    one.do("thing.close(); memory.release(); view.release()")
    assert one.get("a.is_valid()") == []


def test_any_thread(arena):
    """There is no wrong thread: what one takes another gives back; threads may end meanwhile."""
    taken = []

    def take():
        for n in range(50):
            taken.append(arena.match(raw_keys(n % 4, 1)))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(taken) == 200
    fills = []
    thread = threading.Thread(target=lambda: fills.append(arena.allocate(1, keys=raw_keys(70, 1))))
    thread.start()
    thread.join(10)
    fills[0].copy_in(0, b"y" * 1024)
    fills[0].register().release()
    errors = []

    def give():
        while taken:
            try:
                taken.pop().release()
            except IndexError:
                pass
            except kvshm.Error as error:
                errors.append(error)

    threads = [threading.Thread(target=give) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors == []
    assert sum(arena.block(i).own_holds for i in range(16)) == 4, "those of the fixture"


def test_closed_by_one_thread_while_another_waits(arena_name):
    """The closing one is refused in time, or the waiting one gets an error; nobody crashes."""
    arena = kvshm.Arena.create(arena_name, blocks=2, block_bytes=64, helper=False)
    full = arena.allocate(2)
    outcome = []

    def wait():
        try:
            arena.allocate(1, timeout=1.0)
        except kvshm.Error as error:
            outcome.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        arena.close(timeout=0.3)
    except kvshm.Busy:
        pass
    thread.join(10)
    assert outcome in ([kvshm.NoSpaceInTime], [kvshm.Closed])
    full.abort()
    arena.close()
    assert arena.closed


# Random calls through Python


@pytest.mark.slow
def test_random_calls(arena, rounds):
    """A process survives any mixture of arguments, and its arena stays whole."""
    chance = random.Random(1)
    numbers = [0, 1, 3, 15, 16, 17, 255, 2 ** 31, 2 ** 32 - 1, 2 ** 32, 2 ** 63, 2 ** 64 - 1, -1,
               1.5, None, "3", b"", float("nan")]
    objects = []

    def keys():
        return chance.choice([raw_keys(chance.randrange(40), chance.randrange(5)), b"", b"z" * 16,
                              np.zeros((1, 16), np.uint8), [], None, 7,
                              raw_keys(0, 6)[::2], b"q" * 33])

    def handle():
        known = [h for o in objects for h in (getattr(o, "handles", None) or []) if h]
        made_up = (chance.choice(numbers), chance.choice(numbers))
        return chance.choice(known) if known and chance.random() < 0.5 else made_up

    def one():
        what = chance.randrange(16)
        if what < 3:
            return arena.match(keys())
        if what == 3:
            return chance.choice((arena.match_scattered, arena.scan))(keys())
        if what < 7:
            return arena.allocate(chance.choice([1, 1, 2, 3, chance.choice(numbers)]),
                                  keys=chance.choice([None, keys()]),
                                  parts=chance.choice([1, 1, 2, chance.choice(numbers)]))
        if what == 7:
            return arena.upgrade(handle())
        if what == 8:
            return arena.pin([handle() for _ in range(chance.randrange(3))])
        if what == 9:
            return arena.join([handle()])
        if what == 10:
            return arena.wait(handle(), chance.choice([0, 0.001, -1]))
        if what == 11:
            return arena.evict(keys())
        if what == 12:
            return arena.set_priority(handle(), chance.choice([0, 50, 99, 101, -1]))
        if what == 13:
            return arena.block(chance.choice(numbers))
        if not objects:
            return None
        thing = chance.choice(objects)
        method = chance.choice(["release", "abort", "register", "publish", "view", "copy_in",
                                "begin", "arrive", "trim", "copy_out", "handle"])
        arguments = {"view": (chance.choice(numbers),), "copy_in": (0, b"x" * 40, 3),
                     "begin": (0, chance.choice(numbers)), "arrive": (0, chance.choice(numbers)),
                     "trim": (chance.choice(numbers),), "handle": (chance.choice(numbers),),
                     "copy_out": (chance.choice(numbers), bytearray(9))}.get(method, ())
        return getattr(thing, method)(*arguments)

    for number in range(rounds(15_000, 500_000)):
        try:
            result = one()
        except (kvshm.Error, TypeError, ValueError, OverflowError, IndexError, AttributeError,
                BufferError):
            continue
        if hasattr(result, "release") or hasattr(result, "abort"):
            objects.append(result)
        if len(objects) > 12:
            objects.pop(chance.randrange(len(objects)))
        if number % 3000 == 0:
            assert arena.is_valid() == []
    objects.clear()
    stats = arena.stats()
    assert stats.blocks_filling == 0 and stats.blocks_held == 4
