# SPDX-License-Identifier: Apache-2.0
"""Semantics 49-52: several processes, their deaths and their children."""
import hashlib
import os
import struct
import time

import kvshm
import pytest
from support import shm_dir
from support.arenas import content, eventually, gauges, keys, store

WANTED = keys(4, seed=49)
HEX = WANTED.tobytes().hex()
BOUND = 2.0  # seconds within which a dead process's blocks are back

_WRITER = """
    import sys, kvshm, numpy as np
    from support.arenas import content, store
    arena = kvshm.Arena.attach(sys.argv[1])
    keys = np.frombuffer(bytes.fromhex(sys.argv[2]), np.uint8).reshape(-1, 16)
    lease = store(arena, keys)
    say([list(map(int, lease.ids)), lease.handles])
    hear()
    lease.release()
    arena.close()
"""


@pytest.mark.semantics(49)
def test_s49_blocks_outlive_the_process_that_made_them(arena, worker, tests_path):
    writer = worker(_WRITER, arena.name, HEX, env=tests_path)
    ids, _ = writer.hear()
    writer.say("exit")
    assert writer.wait() == 0
    with arena.match(WANTED) as hit:
        assert list(hit.ids) == ids
        for i, key in enumerate(WANTED):
            assert hashlib.sha256(hit.view(i)).digest() == hashlib.sha256(content(key)).digest()


@pytest.mark.semantics(49)
def test_s49_the_holds_of_a_killed_process_come_back(arena, worker, tests_path):
    writer = worker(_WRITER, arena.name, HEX, env=tests_path)
    writer.hear()
    assert gauges(arena)["held"] == 4
    writer.kill()
    start = time.monotonic()
    assert eventually(lambda: gauges(arena)["inactive"] == 4, BOUND)  # the helper thread does it
    assert time.monotonic() - start < BOUND
    with arena.match(WANTED) as hit:
        assert [bytes(hit.view(i)) for i in range(4)] == [content(key) for key in WANTED]
    arena.clear()
    assert gauges(arena)["free"] == 16


_HALF = """
    import sys, kvshm, numpy as np
    arena = kvshm.Arena.attach(sys.argv[1])
    keys = np.frombuffer(bytes.fromhex(sys.argv[2]), np.uint8).reshape(-1, 16)
    fill = arena.allocate(len(keys), keys=keys)
    view = fill.view(0)
    view[:100] = b"x" * 100
    say(fill.handles)
    while True:
        for i in range(0, 4096, 64):
            view[i:i + 64] = b"y" * 64
"""


@pytest.mark.semantics(49)
def test_s49_a_block_half_written_at_its_writers_death_is_never_seen(arena, worker):
    for _ in range(5):
        writer = worker(_HALF, arena.name, HEX)
        handle = kvshm.Handle(*writer.hear()[0])
        assert (arena.presence(WANTED) == kvshm.Presence.FILLING).all()
        pending = arena.match(WANTED).pending
        assert pending == handle
        writer.kill()
        start = time.monotonic()
        assert arena.wait(pending, 10) is False  # over, without having become READY
        assert time.monotonic() - start < BOUND
        assert len(arena.match(WANTED)) == 0 and arena.upgrade(handle) is None
        assert eventually(lambda: gauges(arena)["free"] == 16, BOUND)
        assert not arena.presence(WANTED).any()


IDENTITY = {"model": "llama", "weights": "sha256:1", "dtype": "bfloat16", "namespace": "a"}


@pytest.mark.semantics(50)
@pytest.mark.parametrize("other", [
    {"model": "qwen"}, {"weights": "sha256:2"}, {"dtype": "fp8"}, {"layout": "BHLNC"},
    {"parallel": "tp=2"}, {"namespace": "b"}, {"block_tokens": 32}], ids=lambda o: next(iter(o)))
def test_s50_another_identity_is_refused(make_arena, other):
    arena = make_arena(identity=kvshm.Identity(**IDENTITY))

    def content():
        """All but the superblock's note of who was refused (docs/format.md), which status shows."""
        data = (shm_dir / f"kvshm.{arena.name}").read_bytes()
        return data[:1984] + data[1984 + 1056:]

    before = content()
    for way in (kvshm.Arena.open, kvshm.Arena.attach):
        with pytest.raises(kvshm.IdentityMismatch) as refused:
            way(arena.name, identity=kvshm.Identity(**IDENTITY | other))
        assert "llama" in str(refused.value)
    assert content() == before
    kvshm.Arena.attach(arena.name, identity=kvshm.Identity(**IDENTITY)).close()


@pytest.mark.semantics(50)
def test_s50_a_model_does_not_share_a_raw_arena(arena):
    with pytest.raises(kvshm.IdentityMismatch):
        kvshm.Arena.attach(arena.name, identity=kvshm.Identity(**IDENTITY))


@pytest.mark.semantics(50)
def test_s50_another_block_size_or_layout_is_refused(make_arena):
    arena = make_arena(block_bytes=4096)
    with pytest.raises(kvshm.LayoutMismatch, match="4096"):
        kvshm.Arena.attach(arena.name, block_bytes=8192)
    path = shm_dir / f"kvshm.{arena.name}"
    with path.open("r+b") as file:
        for offset, form in ((8, "I"), (16, "Q")):  # layout version, layout hash
            file.seek(offset)
            good = file.read(struct.calcsize(form))
            file.seek(offset)
            file.write(struct.pack(form, struct.unpack(form, good)[0] + 1))
            file.flush()
            damaged = path.read_bytes()
            for way in (kvshm.Arena.open, kvshm.Arena.attach):
                with pytest.raises(kvshm.LayoutMismatch, match="layout"):
                    way(arena.name, block_bytes=4096, blocks=16)
            assert path.read_bytes() == damaged
            file.seek(offset)
            file.write(good)
            file.flush()
    kvshm.Arena.attach(arena.name).close()


@pytest.mark.semantics(50)
def test_s50_the_same_prompt_of_others_is_a_miss(make_arena):
    ident = kvshm.Identity(**IDENTITY)
    arena = make_arena(identity=ident)
    prompt = list(range(64))
    store(arena, ident.keys(prompt, salt="t1", extra={"adapter": b"lora-1"})).release()
    others = [
        ident.keys(prompt),
        ident.keys(prompt, salt="t1"),
        ident.keys(prompt, salt="t2", extra={"adapter": b"lora-1"}),
        ident.keys(prompt, salt="t1", extra={"adapter": b"lora-2"}),
        kvshm.Identity(**IDENTITY | {"model": "qwen"}).keys(
            prompt, salt="t1", extra={"adapter": b"lora-1"}),
        kvshm.Identity(**IDENTITY, epoch=1).keys(prompt, salt="t1", extra={"adapter": b"lora-1"}),
    ]
    for keys_ in others:
        assert not arena.presence(keys_).any()
        assert len(arena.match(keys_)) == 0 and arena.match_scattered(keys_).hits == 0
    with arena.match(ident.keys(prompt, salt="t1", extra={"adapter": b"lora-1"})) as hit:
        assert len(hit) == 4


@pytest.mark.semantics(51)
def test_s51_a_handle_tells_that_its_block_has_another_life(make_arena):
    arena = make_arena(blocks=1)
    a, b = keys(2, seed=51)
    lease = store(arena, [a])
    handle = lease.handle(0)
    data = bytearray(4096)
    lease.copy_out(0, data)
    assert data == content(a)
    lease.release()
    with pytest.raises(kvshm.Closed):
        lease.view(0)
    store(arena, [b]).release()  # the same block, another life
    assert arena.upgrade(handle) is None
    assert arena.pin([handle]) is None
    with arena.match([b]) as now:
        assert now.ids[0] == handle.id and now.handle(0).seq > handle.seq
        assert bytes(now.view(0)) == content(b)
    # Eleven bits of it are in the word: many lives later it is told apart all the same.
    for i in range(2048):
        arena.allocate(1, announce=False, keys=keys(1, seed=i)).register().release()
        assert arena.upgrade(handle) is None


@pytest.mark.semantics(51)
def test_s51_a_view_keeps_its_bytes_from_being_replaced(make_arena):
    arena = make_arena(blocks=2)
    a, b, c = keys(3, seed=51)
    lease = store(arena, [a])
    view = lease.view(0)
    lease.release()
    store(arena, [b]).release()
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(2)
    store(arena, [c]).release()
    assert bytes(view) == content(a)
    assert list(arena.presence([a, b, c])) == [1, 0, 1]
    view.release()
    assert len(arena.allocate(2)) == 2


@pytest.mark.semantics(52)
def test_s52_a_forked_child_owns_nothing(arena, worker):
    one = worker("""
        import os, sys, kvshm
        arena = kvshm.Arena.attach(sys.argv[1])
        lease = arena.allocate(3, keys=[bytes([i]) * 16 for i in (1, 2, 3)]).register()
        child = os.fork()
        if child == 0:
            status = 0
            for call in (lambda: arena.match([bytes([1]) * 16]), lambda: arena.allocate(1),
                         lambda: lease.view(0), arena.reap, arena.clear, arena.stats):
                try:
                    call()
                    status = 1
                except kvshm.Forked:
                    pass
            lease.release()    # nothing to give back here
            arena.close()
            arena.close()
            other = kvshm.Arena.attach(sys.argv[1])    # its own attachment
            status += len(other.match([bytes([1]) * 16])) != 1
            other.close()
            os._exit(status)
        say([os.waitpid(child, 0)[1], len(lease), bytes(lease.view(0)) == bytes(4096)])
        hear()
    """, arena.name)
    assert one.hear() == [0, 3, True]
    assert gauges(arena)["held"] == 3  # the child's exit gave nothing of the parent's back
    one.kill()
    assert eventually(lambda: gauges(arena)["inactive"] == 3, BOUND)


@pytest.mark.semantics(52)
def test_s52_a_child_that_outlives_its_parent_keeps_nothing_of_it(arena, worker):
    """No mapping, no lock: the parent's slot is given back although a copy of it lives on."""
    one = worker("""
        import os, sys, time, kvshm
        arena = kvshm.Arena.attach(sys.argv[1])
        lease = arena.allocate(2, keys=[bytes([i]) * 16 for i in (1, 2)]).register()
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        say(child)
        hear()
    """, arena.name)
    child = one.hear()
    try:
        one.kill()
        assert eventually(lambda: gauges(arena)["inactive"] == 2, BOUND)
        assert os.path.exists(f"/proc/{child}")
    finally:
        os.kill(child, 9)


@pytest.mark.semantics(52)
def test_s52_detaching_twice_and_last(new_name):
    name = new_name()
    arena = kvshm.Arena.create(name, blocks=4, block_bytes=4096)
    store(arena, WANTED[:2]).release()
    arena.close()
    arena.close()
    assert arena.closed
    assert (shm_dir / f"kvshm.{name}").exists()
    again = kvshm.Arena.attach(name)  # nobody was attached: warm all the same
    with again.match(WANTED[:2]) as hit:
        assert [bytes(hit.view(i)) for i in (0, 1)] == [content(key) for key in WANTED[:2]]
    assert again.is_valid() == []
    again.close()
