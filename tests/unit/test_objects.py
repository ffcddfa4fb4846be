# SPDX-License-Identifier: Apache-2.0
"""kvshm.objects: states larger than a block."""
import gc
import hashlib
import io

import kvshm
import numpy as np
import pytest
from kvshm import objects
from support.arenas import BLOCK, eventually, gauges, keys, store

KEY, OTHER = (bytes(key) for key in keys(2, seed=60))
SIZE = 5 * BLOCK + 123


def data(size=SIZE, seed=1):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


def put(arena, key=KEY, content=None):
    content = data() if content is None else content
    with objects.create(arena, key, len(content)) as one:
        one.write(content)
        one.commit()


def test_the_whole_life(arena):
    one = objects.create(arena, KEY, SIZE)
    assert one.writable and len(one) == one.nbytes == SIZE and one.contiguous
    memoryview(one)[:] = data()
    assert objects.get(arena, KEY) is None  # not before the commit
    one.commit()
    assert not one.writable and "read-only" in repr(one)
    with objects.get(arena, KEY) as other:
        assert bytes(memoryview(other)) == data() == other.tobytes()
        array = np.frombuffer(other, np.uint8)
        assert not array.flags.writeable
        del array
    one.close()
    assert gauges(arena)["held"] == 0 and gauges(arena)["inactive"] == 6
    put(arena, OTHER)
    with objects.get(arena, KEY) as again:
        assert again.tobytes() == data()


def test_copies_by_offset(arena):
    with objects.create(arena, KEY, SIZE) as one:
        one.write(data())
        one.write(np.arange(4, dtype=np.uint32), offset=BLOCK - 8)  # across two blocks
        expected = bytearray(data())
        expected[BLOCK - 8:BLOCK + 8] = np.arange(4, dtype=np.uint32).tobytes()
        part = bytearray(100)
        one.read(part, offset=BLOCK - 50)
        assert part == expected[BLOCK - 50:BLOCK + 50]
        for offset in (SIZE, SIZE - 1):
            with pytest.raises(kvshm.InvalidArgument):
                one.write(b"xx", offset=offset)
            with pytest.raises(kvshm.InvalidArgument):
                one.read(bytearray(2), offset=offset)
        one.commit()
        with pytest.raises(kvshm.Misuse):
            one.write(b"x")
        with pytest.raises(kvshm.Misuse):
            one.commit()
        with pytest.raises((BufferError, TypeError)):
            io.BytesIO(b"x").readinto(one)


def test_what_is_not_committed_is_never_seen(arena):
    with objects.create(arena, KEY, SIZE) as one:
        one.write(data())
    assert objects.get(arena, KEY) is None and gauges(arena)["free"] == 16
    one = objects.create(arena, KEY, SIZE)
    del one
    gc.collect()
    assert gauges(arena)["free"] == 16


def test_a_second_one_of_the_key_is_not_made(arena):
    put(arena)
    assert objects.create(arena, KEY, SIZE) is None
    assert gauges(arena)["held"] == gauges(arena)["filling"] == 0


def test_pieces(make_arena):
    """No run of free blocks is long enough: it is there all the same, by copies."""
    arena = make_arena(blocks=12)
    singles = keys(12, seed=61)
    store(arena, singles, chained=False).release()
    for i in range(0, 12, 2):
        assert arena.evict(singles[i:i + 1]) == 1
    kept = arena.match_scattered(singles[1::2])
    with objects.create(arena, KEY, SIZE) as one:
        assert one.pieces == 6 and not one.contiguous
        with pytest.raises(BufferError, match="pieces"):
            memoryview(one)
        one.write(data())
        one.commit()
    with objects.get(arena, KEY) as other:
        assert other.tobytes() == data()
    kept.release()


def test_an_object_that_lost_a_block_is_gone(arena):
    put(arena)
    with arena.allocate(11) as fill:  # one of its six goes
        assert len(fill.evicted) == 1
    assert objects.get(arena, KEY) is None


def test_open_objects_keep_the_arena_open(arena):
    put(arena)
    one = objects.get(arena, KEY)
    with pytest.raises(BufferError):
        arena.close()
    memory = memoryview(one)
    with pytest.raises(BufferError):
        one.close()
    memory.release()
    one.close()
    one.close()
    assert one.closed
    for use in (lambda: one.read(bytearray(1)), lambda: one.pieces, lambda: memoryview(one),
                one.commit, one.__enter__):
        with pytest.raises(kvshm.Closed):
            use()
    arena.close()


def test_no_space(arena):
    with pytest.raises(kvshm.InvalidArgument):
        objects.create(arena, KEY, 0)
    with pytest.raises((kvshm.NoSpace, kvshm.InvalidArgument)):
        objects.create(arena, KEY, 17 * BLOCK)
    held = arena.allocate(12)
    with pytest.raises(kvshm.NoSpace):
        objects.create(arena, KEY, SIZE)
    with pytest.raises(kvshm.NoSpaceInTime):
        objects.create(arena, KEY, SIZE, timeout=0.2)
    held.abort()
    objects.create(arena, KEY, "20KiB").close()
    arena.close()  # what was refused left nothing open


def test_across_processes_and_a_death(arena, worker):
    put(arena)
    reader = worker("""
        import sys, hashlib, kvshm
        from kvshm import objects
        arena = kvshm.Arena.attach(sys.argv[1])
        with objects.get(arena, bytes.fromhex(sys.argv[2])) as one:
            say(hashlib.sha256(one.tobytes()).hexdigest())
        one = objects.create(arena, bytes.fromhex(sys.argv[3]), 3 * 4096)
        say("half written")
        hear()
    """, arena.name, KEY.hex(), OTHER.hex())
    assert reader.hear() == hashlib.sha256(data()).hexdigest()
    reader.hear()
    with pytest.raises(kvshm.Busy):
        objects.create(arena, OTHER, SIZE)
    reader.kill()
    assert eventually(lambda: gauges(arena)["filling"] == 0)
    put(arena, OTHER)
    assert objects.get(arena, OTHER).tobytes() == data()


def test_objects_are_not_made_by_hand():
    with pytest.raises(TypeError):
        objects.StoredObject()
