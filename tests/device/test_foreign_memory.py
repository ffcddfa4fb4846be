# SPDX-License-Identifier: Apache-2.0
"""S82: store from and load into memory of every kind. What can be used works; what cannot is
refused, each in its own words, and nothing is half copied."""
import ctypes
import mmap
import os

import kvshm
import numpy as np
import pytest
from kvshm import paged
from support.arenas import content, keys, store
from support.kv_tensors import Memory, of_array, pages

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)


def address_of(memory: mmap.mmap) -> int:
    return np.frombuffer(memory, np.uint8).__array_interface__["data"][0]


def stored(arena, memory, row, seed=1):
    """Row `row` of it, as a block of the arena."""
    table = paged.runs_of({"kv": memory}, memory.shape[0])
    with arena.allocate(1, keys=keys(1, seed)) as fill:
        assert table.store(fill, [row]).tolist() == [0]
        assert table.finish(fill).tolist() == [0]
    with arena.match(keys(1, seed)) as hit:
        return bytes(hit.view(0))[:table.slice_bytes]


def loaded(arena, memory, row):
    table = paged.runs_of({"kv": memory}, memory.shape[0])
    with store(arena, keys(1, 9)) as lease:
        return table.load(lease, [row]).tolist()


def test_heap_memory_at_any_address(arena):
    room = np.frombuffer(os.urandom(8 * 1000), np.uint8).copy()
    for offset in (0, 1, 7, 33):
        memory = of_array(room, offset=offset, shape=(7, 1000))
        was = room.copy()
        assert stored(arena, memory, 3, seed=offset)[:1000] == bytes(was[offset + 3000:][:1000])
        assert loaded(arena, memory, 5) == [0]
        want = content(keys(1, 9)[0])[:1000]
        assert bytes(room[offset + 5000:][:1000]) == want
        room[offset + 5000:][:1000] = was[offset + 5000:][:1000]
        assert (room == was).all()


def test_memory_of_an_arena(make_arena):
    """From the block of one arena into that of another."""
    one, other = make_arena(), make_arena()
    with one.allocate(1, keys=keys(1)) as fill, fill.view(0) as view:
        array = np.asarray(view).view(np.uint8).reshape(-1)
        array[:] = np.frombuffer(os.urandom(array.size), np.uint8)
        memory = of_array(array, shape=(4, array.size // 4))
        assert stored(other, memory, 2) == bytes(array[2 * memory.shape[1]:][:memory.shape[1]])
        assert loaded(other, memory, 1) == [0]
        del array


def test_read_only_memory_can_be_stored_and_nothing_else(arena):
    room = pages(2, readonly=True)
    memory = Memory(address_of(room), (2, PAGE))
    assert stored(arena, memory, 1) == bytes(PAGE)
    with pytest.raises(kvshm.PermissionDenied, match="written"):
        loaded(arena, memory, 0)


def test_a_mapping_smaller_than_claimed(arena):
    """The allocation's bounds say so, or the kernel does."""
    room = pages(2)
    start = address_of(room)
    with pytest.raises(kvshm.InvalidArgument, match=r"'kv'.*allocation of 8192"):
        paged.runs_of({"kv": Memory(start, (3, PAGE), nbytes=2 * PAGE)}, 3)
    hole = LIBC.mmap
    hole.restype = ctypes.c_void_p
    at = hole(None, ctypes.c_size_t(4 * PAGE), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1,
              ctypes.c_long(0))
    assert LIBC.munmap(ctypes.c_void_p(at + 2 * PAGE), ctypes.c_size_t(2 * PAGE)) == 0
    assert stored(arena, Memory(at, (2, PAGE)), 1) == bytes(PAGE)
    with pytest.raises(kvshm.InvalidArgument, match=r"'kv'.*is not mapped"):
        paged.runs_of({"ok": Memory(start, (4, 64)), "kv": Memory(at, (4, PAGE))}, 4)
    assert LIBC.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(PAGE), 0) == 0
    with pytest.raises(kvshm.InvalidArgument, match=r"'kv'.*not mapped, or not readable"):
        paged.runs_of({"kv": Memory(at, (2, PAGE))}, 2)
    assert LIBC.munmap(ctypes.c_void_p(at), ctypes.c_size_t(2 * PAGE)) == 0


def test_memory_that_was_freed():
    room = pages(2)
    memory = Memory(address_of(room), (2, PAGE))
    paged.runs_of({"kv": memory}, 2)
    room.close()
    with pytest.raises(kvshm.InvalidArgument, match=r"'kv'.*is not mapped"):
        paged.runs_of({"kv": memory}, 2)


def test_no_memory():
    with pytest.raises(kvshm.InvalidArgument, match=r"'kv'.*address 0"):
        paged.runs_of({"kv": Memory(0, (2, PAGE))}, 2)
    with pytest.raises(kvshm.InvalidArgument, match=r"'kv'.*address space"):
        paged.runs_of({"kv": Memory(2**64 - 4096, (2, PAGE))}, 2)


def test_a_row_is_whole_or_untouched(arena):
    """Of the rows of one call, those with a code are as they were."""
    room = np.frombuffer(os.urandom(8 * 512), np.uint8).copy()
    table = paged.runs_of({"kv": of_array(room, shape=(8, 512))}, 8)
    with store(arena, keys(3)) as lease:
        was = room.copy()
        assert table.load(lease, [1, 8, 3]).tolist() == [0, -34, 0]
        for row in range(8):
            want = {1: content(keys(3)[0])[:512], 3: content(keys(3)[2])[:512]}.get(
                row, bytes(was[row * 512:][:512]))
            assert bytes(room[row * 512:][:512]) == want, row
    with pytest.raises(kvshm.Closed):
        table.load(lease, [1])
