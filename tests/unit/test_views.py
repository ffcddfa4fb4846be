# SPDX-License-Identifier: Apache-2.0
"""Views: the bytes of a block in place, and what keeps them there."""
import gc
import io
import threading

import kvshm
import numpy as np
import pytest
from support.arenas import BLOCK, content, gauges, keys, store

ONE = keys(1, seed=1)


@pytest.fixture
def lease(arena):
    return store(arena, ONE)


def test_a_view_of_a_finished_block_is_read_only(lease):
    view = lease.view(0)
    assert len(view) == view.nbytes == BLOCK and view.readonly
    with memoryview(view) as memory:
        assert (memory.readonly, memory.format, memory.shape) == (True, "B", (BLOCK,))
        assert memory.tobytes() == content(ONE[0])
        assert memory.c_contiguous
    with pytest.raises((TypeError, BufferError)):
        view[0] = 1
    array = np.frombuffer(view, np.uint32)
    assert not array.flags.writeable and array.base is not None
    with pytest.raises(ValueError):
        array.flags.writeable = True
    assert bytes(view[:16]) == bytes(ONE[0]) and view[3] == ONE[0][3]
    with pytest.raises((BufferError, TypeError)):
        io.BytesIO(b"x").readinto(view)  # asks for a writable buffer


def test_no_copy_is_made(arena):
    fill = arena.allocate(1, keys=ONE)
    mine = np.frombuffer(fill.view(0), np.uint64)
    mine[:] = 7
    lease = fill.register()
    theirs = np.frombuffer(lease.view(0), np.uint64)
    assert (theirs == 7).all()
    assert theirs.ctypes.data == mine.ctypes.data


def test_a_fill_is_written_through_its_views(arena):
    fill = arena.allocate(2)
    assert not fill.view(0).readonly
    fill.view(0)[:] = b"a" * BLOCK
    fill.view(0)[8:16] = np.arange(4, dtype=np.uint16)
    fill.view(-1)[5] = 9
    memory = memoryview(fill.view(0))
    assert memory[:8] == b"a" * 8 and memory[8:16] == b"\0\0\1\0\2\0\3\0"
    assert memoryview(fill.view(1))[5] == 9
    with pytest.raises(ValueError):
        fill.view(0)[:] = b"too short"
    with pytest.raises(IndexError):
        fill.view(2)


def test_a_view_holds_its_block_by_itself(arena, lease):
    view = lease.view(0)
    lease.release()
    assert gauges(arena)["held"] == 1
    assert arena.evict(ONE) == 0
    array = np.frombuffer(view, np.uint8)
    del view  # the array keeps it
    gc.collect()
    assert gauges(arena)["held"] == 1 and array[0] == ONE[0][0]
    del array
    gc.collect()
    assert gauges(arena)["inactive"] == 1


def test_release_gives_the_hold_back_once(arena, lease):
    view = lease.view(0)
    lease.release()
    memory = memoryview(view)
    with pytest.raises(BufferError):
        view.release()
    assert gauges(arena)["held"] == 1
    memory.release()
    view.release()
    view.release()
    assert gauges(arena)["inactive"] == 1
    with pytest.raises(kvshm.Closed):
        memoryview(view)
    assert "released" in repr(view)


def test_a_view_in_a_with_block(arena, lease):
    with lease.view(0) as view:
        assert view[0] == ONE[0][0]
    with pytest.raises(kvshm.Closed):
        view[0]


def test_close_refuses_while_a_view_lives(arena, lease):
    view = lease.view(0)
    array = np.frombuffer(view, np.uint8)
    with pytest.raises(BufferError, match="1 live view"):
        arena.close()
    assert not arena.closed
    assert array[0] == ONE[0][0]
    assert len(arena.match(ONE)) == 1  # it works as before
    del array
    view.release()
    arena.close()
    assert arena.closed


def test_an_exception_is_not_hidden_by_views_in_its_frames(new_name):
    with pytest.raises(ZeroDivisionError):
        with kvshm.Arena.create(new_name(), blocks=2, block_bytes=BLOCK) as arena:
            view = store(arena, ONE).view(0)
            assert view[0] / 0
    with pytest.raises(BufferError):
        with arena:
            pass
    view.release()
    arena.close()


def test_the_arena_lives_as_long_as_its_views(new_name):
    arena = kvshm.Arena.create(new_name(), blocks=2, block_bytes=BLOCK)
    view = store(arena, ONE).view(0)
    del arena
    gc.collect()
    assert bytes(view) == content(ONE[0])


def test_a_view_of_an_aborted_fill_keeps_its_block(arena):
    """Whoever still has a pen in a block: it is not given to anybody else."""
    fill = arena.allocate(16)
    view = fill.view(3)
    fill.abort()
    assert gauges(arena)["filling"] == 1
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(16)
    view[:4] = b"late"
    view.release()
    assert gauges(arena)["free"] == 16


def test_a_view_may_outlive_the_registration_of_its_fill(arena):
    fill = arena.allocate(1, keys=ONE)
    view = fill.view(0)
    fill.register().release()
    assert gauges(arena)["held"] == 1
    view.release()
    assert gauges(arena)["inactive"] == 1


def test_a_rejected_duplicate_stays_while_it_is_viewed(arena, lease):
    fill = arena.allocate(1)
    view = fill.view(0)
    mine = fill.ids[0]
    got = fill.register("reject", keys=ONE)
    assert got.ids[0] == lease.ids[0] != mine
    assert mine not in arena.allocate(14).ids
    view[:] = b"z" * BLOCK
    assert bytes(got.view(0)) == content(ONE[0])
    view.release()
    assert mine in arena.allocate(1).ids


def test_views_are_not_made_by_hand():
    for make in (kvshm.View, lambda: kvshm.View.__new__(kvshm.View)):
        with pytest.raises(TypeError):
            make()


def test_an_arena_without_data_has_no_views(make_arena):
    arena = make_arena(block_bytes=0)
    with pytest.raises(kvshm.Error, match="no data"):
        arena.allocate(1).view(0)
    assert gauges(arena)["free"] == 16


@pytest.mark.parametrize("writable", [False, True])
def test_dlpack_into_numpy(arena, writable):
    fill = arena.allocate(1, keys=ONE)
    fill.view(0)[:] = content(ONE[0])
    held = fill if writable else fill.register()
    view = held.view(0)
    assert view.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(view)
    assert array.shape == (BLOCK,) and array.dtype == np.uint8
    assert array.flags.writeable == writable
    assert array.tobytes() == content(ONE[0])
    with pytest.raises(BufferError):
        view.release()
    del array
    view.release()


def test_dlpack_capsules_that_nobody_takes(arena, lease):
    view = lease.view(0)
    capsule = view.__dlpack__(max_version=(1, 0))
    with pytest.raises(BufferError):
        view.release()
    del capsule
    view.release()
    fill = arena.allocate(1)
    view = fill.view(0)
    del_me = view.__dlpack__()  # before version 1: for what is writable only
    del del_me
    view.release()


def test_dlpack_refusals(lease):
    view = lease.view(0)
    for wrong in ({}, {"max_version": (0, 8)}, {"max_version": (1, 0), "copy": True},
                  {"max_version": (1, 0), "stream": 1},
                  {"max_version": (1, 0), "dl_device": (2, 0)}):
        with pytest.raises(BufferError):
            view.__dlpack__(**wrong)
    view.release()


def test_views_in_many_threads(arena, lease):
    def look():
        for _ in range(300):
            with lease.view(0) as view:
                assert bytes(view[:16]) == bytes(ONE[0])

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lease.release()
    assert gauges(arena)["inactive"] == 1
    arena.close()


_CHECKED = """
    import sys, warnings, ctypes, numpy as np, kvshm
    warnings.simplefilter("always")
    arena = kvshm.Arena.attach(sys.argv[1])
    lease = arena.allocate(1, keys=[bytes([1]) * 16]).register()
    view = lease.view(0)
    address = np.frombuffer(view, np.uint8).ctypes.data
    view.release()                              # nothing has changed
    view = lease.view(0)
    ctypes.memset(address + 4095, 1, 1)         # as through a tensor
    try:
        view.release()
        say("unseen")
    except kvshm.Misuse as error:
        say(str(error))
    view = lease.view(0)
    ctypes.memset(address, 1, 1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        del view
    say([str(one.message) for one in seen])
    hear()
"""


def test_kvshm_check_finds_writes_to_finished_blocks(arena, worker):
    one = worker(_CHECKED, arena.name, env={"KVSHM_CHECK": "1"})
    assert "read-only view" in one.hear()
    said = one.hear()
    assert len(said) == 1 and "read-only view" in said[0]
    unchecked = worker(_CHECKED, arena.name, env={"KVSHM_CHECK": "0"})
    assert unchecked.hear() == "unseen"


@pytest.mark.torch
def test_torch_shares_the_memory(arena):
    torch = pytest.importorskip("torch")
    fill = arena.allocate(1, keys=ONE)
    tensor = torch.frombuffer(fill.view(0), dtype=torch.bfloat16)
    tensor.fill_(1.5)
    assert tensor.shape == (BLOCK // 2,)
    lease = fill.register()
    assert (np.frombuffer(lease.view(0), np.uint16) == 0x3FC0).all()
    other = torch.from_dlpack(lease.view(0))
    assert other.data_ptr() == tensor.data_ptr()
    del tensor, other
    gc.collect()
    lease.release()
    assert gauges(arena)["inactive"] == 1
