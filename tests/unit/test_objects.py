# SPDX-License-Identifier: Apache-2.0
"""kvshm.objects: states larger than a block."""
import gc
import io
import threading

import kvshm
import numpy as np
import pytest
from kvshm import objects
from support.arenas import BLOCK, content, gauges, keys, store

KEY, OTHER = (bytes(key) for key in keys(2, seed=60))
SIZE = 5 * BLOCK + 123


def data(size=SIZE, seed=1):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()


@pytest.fixture
def scattered(make_arena):
    """An arena in which every other block is free, and no two side by side."""
    arena = make_arena(blocks=12)
    singles = keys(12, seed=61)
    store(arena, singles, chained=False).release()
    for i in range(0, 12, 2):
        assert arena.evict(singles[i:i + 1]) == 1
    kept = arena.match_scattered(singles[1::2])
    yield arena
    kept.release()


def test_the_whole_life(arena):
    fill = arena.create_object(KEY, SIZE)
    assert isinstance(fill, kvshm.ObjectFill) and fill.key == KEY
    assert len(fill) == fill.nbytes == SIZE and fill.contiguous
    memoryview(fill)[:] = data()
    assert arena.get_object(KEY) is None  # not before the commit
    one = fill.commit()
    assert isinstance(one, kvshm.Object) and fill.closed and not one.closed
    with arena.get_object(KEY) as other:
        assert memoryview(other) == data() == bytes(other)
        array = np.frombuffer(other, np.uint8)
        assert not array.flags.writeable
        del array
    assert gauges(arena)["held"] == 6
    one.close()
    assert gauges(arena)["held"] == 0 and gauges(arena)["inactive"] == 6
    with arena.get_object(KEY) as again:
        assert bytes(again) == data()


def test_no_copy_is_made(arena):
    fill = arena.create_object(KEY, SIZE)
    address = np.frombuffer(fill, np.uint8).ctypes.data
    one = fill.commit()
    assert np.frombuffer(one, np.uint8).ctypes.data == address
    stats = arena.stats(own=True)
    assert stats["copy_in_bytes_total"] == stats["copy_out_bytes_total"] == 0
    bytes(one)
    assert arena.stats(own=True)["copy_out_bytes_total"] == SIZE


def test_copies_by_offset(arena):
    fill = arena.create_object(KEY, SIZE)
    fill.write(0, data())
    fill.write(BLOCK - 8, np.arange(4, dtype=np.uint32))  # across two blocks
    expected = bytearray(data())
    expected[BLOCK - 8:BLOCK + 8] = np.arange(4, dtype=np.uint32).tobytes()
    part = bytearray(100)
    fill.read(BLOCK - 50, part)
    assert part == expected[BLOCK - 50:BLOCK + 50]
    fill.write(SIZE, b"")
    for offset in (SIZE, SIZE - 1, 2**64 - 1, -1):
        with pytest.raises(kvshm.InvalidArgument):
            fill.write(offset, b"xx")
        with pytest.raises(kvshm.InvalidArgument):
            fill.read(offset, bytearray(2))
    with pytest.raises(kvshm.InvalidArgument):
        fill.read(0, b"read-only")
    assert bytes(fill.commit()) == expected


def test_committed_it_is_read_only(arena):
    fill = arena.create_object(KEY, SIZE)
    one = fill.commit()
    for use in (fill.commit, lambda: fill.write(0, b"x"), lambda: memoryview(fill)):
        with pytest.raises(kvshm.Closed):
            use()
    assert not hasattr(one, "write") and not hasattr(one, "commit")
    for view in (memoryview(one), one.pieces()[0]):
        assert view.readonly
        with pytest.raises(TypeError):
            view[0] = 1
    with pytest.raises((BufferError, TypeError)):
        io.BytesIO(b"x").readinto(one)


def test_no_commit_while_somebody_could_still_write(arena):
    fill = arena.create_object(KEY, SIZE)
    for buffer in (memoryview(fill), fill.pieces()[0]):
        with pytest.raises(BufferError):
            fill.commit()
        buffer[:5] = b"valid"
        buffer.release()
    assert bytes(fill.commit())[:5] == b"valid"


def test_what_is_not_committed_is_never_seen(arena):
    with arena.create_object(KEY, SIZE) as fill:
        fill.write(0, data())
    assert fill.closed and arena.get_object(KEY) is None and gauges(arena)["free"] == 16
    fill = arena.create_object(KEY, SIZE)
    del fill
    gc.collect()
    assert gauges(arena)["free"] == 16
    with pytest.raises(ZeroDivisionError):
        with arena.create_object(KEY, SIZE) as fill:
            memory = memoryview(fill)  # of no concern to who handles the exception
            memory[1 // 0] = 1
    del memory, fill
    gc.collect()
    assert gauges(arena)["free"] == 16


def test_a_second_one_of_the_key_is_not_made(arena):
    assert arena.put_object(KEY, data()) is True
    assert arena.create_object(KEY, SIZE) is None
    assert arena.put_object(KEY, b"other") is False
    assert bytes(arena.get_object(KEY)) == data()
    gc.collect()
    fill = arena.create_object(OTHER, SIZE)
    with pytest.raises(kvshm.Busy):
        arena.create_object(OTHER, 7)
    handle = arena.pending(OTHER)
    assert not arena.wait(handle, 0.01)
    fill.commit().close()
    assert arena.wait(handle, 5)
    assert gauges(arena)["held"] == gauges(arena)["filling"] == 0


def test_pieces(scattered):
    """No run of free blocks is long enough: it is there all the same."""
    fill = scattered.create_object(KEY, SIZE)
    assert not fill.contiguous
    with pytest.raises(BufferError, match="6 pieces"):
        memoryview(fill)
    pieces = fill.pieces()
    assert [len(piece) for piece in pieces] == [BLOCK] * 5 + [123]
    at = 0
    for piece in pieces:
        piece[:] = data()[at:at + len(piece)]
        at += len(piece)
        piece.release()
    one = fill.commit()
    with pytest.raises(BufferError, match="6 pieces"):
        np.frombuffer(one, np.uint8)
    other = scattered.get_object(KEY)
    assert b"".join(other.pieces()) == bytes(other) == data()
    part = np.zeros(200, np.uint8)
    other.read(2 * BLOCK - 100, part)
    assert part.tobytes() == data()[2 * BLOCK - 100:2 * BLOCK + 100]
    one.close()
    other.close()


def test_a_piece_keeps_its_object(scattered):
    scattered.put_object(KEY, data())
    one = scattered.get_object(KEY)
    piece = one.pieces()[-1]
    del one
    gc.collect()
    assert gauges(scattered)["held"] == 12 and piece == data()[-123:]
    with pytest.raises(BufferError):
        scattered.close()
    del piece
    gc.collect()
    assert gauges(scattered)["held"] == 6


def test_blocks_under_an_object_are_not_evicted(arena):
    arena.put_object(KEY, data())
    array = np.frombuffer(arena.get_object(KEY), np.uint8)
    assert arena.evict([KEY]) == 0 and arena.clear() == 0
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(11)
    assert array.tobytes() == data()
    del array
    gc.collect()
    assert arena.clear() == 6


def test_an_object_that_lost_a_block_is_gone(arena):
    arena.put_object(KEY, data())
    with arena.allocate(11) as fill:  # one of its six goes: the head
        assert [bytes(key) for key in fill.evicted] == [KEY]
    assert arena.get_object(KEY) is None
    assert arena.put_object(KEY, data(seed=2)) and bytes(arena.get_object(KEY)) == data(seed=2)
    gc.collect()


def test_open_objects_keep_the_arena_open(arena):
    arena.put_object(KEY, data())
    one = arena.get_object(KEY)
    with pytest.raises(BufferError):
        arena.close()
    memory = memoryview(one)
    with pytest.raises(BufferError):
        one.close()
    memory.release()
    one.close()
    one.close()
    assert one.closed and "closed" in repr(one)
    for use in (lambda: one.read(0, bytearray(1)), one.pieces, lambda: memoryview(one),
                lambda: one.contiguous, lambda: bytes(one), one.__enter__):
        with pytest.raises(kvshm.Closed):
            use()
    arena.close()
    for use in (lambda: arena.get_object(KEY), lambda: arena.put_object(KEY, b"x"),
                lambda: arena.create_object(KEY, 1)):
        with pytest.raises(kvshm.Closed):
            use()


def test_refusals(arena):
    for size in (0, -1, "x", 17 * BLOCK, 2**64 - 1, 2**70):
        with pytest.raises(kvshm.InvalidArgument):
            arena.create_object(KEY, size)
    for key in (b"short", bytes(16), b"x" * 17):
        with pytest.raises(kvshm.InvalidArgument):
            arena.create_object(key, SIZE)
        with pytest.raises(kvshm.InvalidArgument):
            arena.get_object(key)
    with pytest.raises(kvshm.InvalidArgument):
        arena.create_object(KEY, SIZE, priority=101)
    with pytest.raises(kvshm.InvalidArgument):
        arena.put_object(KEY, b"")
    for make in (objects.StoredObject, kvshm.Object, kvshm.ObjectFill):
        with pytest.raises(TypeError):
            make()
    arena.close()  # what was refused left nothing open


def test_no_space(arena):
    held = arena.allocate(12)
    with pytest.raises(kvshm.NoSpace):
        arena.create_object(KEY, SIZE)
    with pytest.raises(kvshm.NoSpaceInTime):
        arena.create_object(KEY, SIZE, timeout=0.2)
    threading.Timer(0.2, held.abort).start()
    fill = arena.create_object(KEY, "20KiB", timeout=10)
    assert len(fill) == 20480
    fill.close()


def test_options(arena):
    fill = arena.create_object(KEY, SIZE, no_cache=True)
    fill.commit().close()
    assert arena.get_object(KEY) is None and gauges(arena)["free"] == 16
    assert arena.put_object(KEY, data(), priority=100)
    with pytest.raises(kvshm.NoSpace):
        arena.put_object(OTHER, data(11 * BLOCK))
    arena.clear()
    arena.put_object(KEY, data())
    with pytest.raises(kvshm.NoSpace):
        arena.put_object(OTHER, data(11 * BLOCK), evict=False)
    assert arena.put_object(OTHER, data(11 * BLOCK))


def test_an_ordinary_block_is_no_object(arena):
    store(arena, keys(1, seed=62)).release()
    assert arena.get_object(keys(1, seed=62)[0]) is None
    assert arena.create_object(keys(1, seed=62)[0], 10) is None
    lease = arena.match(keys(1, seed=62))
    assert bytes(lease.view(0)) == content(keys(1, seed=62)[0])


def test_many_threads_read_one_object(arena):
    arena.put_object(KEY, data())
    one = arena.get_object(KEY)
    wrong = []

    def look():
        for _ in range(100):
            if bytes(one) != data() or one.pieces()[0][5] != data()[5]:
                wrong.append(1)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    one.close()


@pytest.mark.torch
def test_torch_shares_the_memory(arena):
    torch = pytest.importorskip("torch")
    fill = arena.create_object(KEY, 2 * BLOCK)
    torch.frombuffer(fill, dtype=torch.bfloat16).fill_(1.5)
    one = fill.commit()
    assert (np.frombuffer(one, np.uint16) == 0x3FC0).all()
