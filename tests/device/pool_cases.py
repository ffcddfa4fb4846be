# SPDX-License-Identifier: Apache-2.0
"""A pool on device memory: run by test_pool_cuda.py in a process that has the fake driver."""
from __future__ import annotations

import errno
import sys
import time
from types import SimpleNamespace as NS

import kvshm
import numpy as np
import pytest
from kvshm import device
from kvshm.records import NONE, DeviceState
from support.arenas import keys, store
from support.mock_cuda import Cuda
from support.mock_model import Tensor

ROWS, PIECE = 8, 256


@pytest.fixture
def one(arena_name, monkeypatch):
    cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch", cuda.module())
    memory = np.random.default_rng(1).integers(0, 256, (2, ROWS, PIECE), np.uint8)
    layers = {f"layers.{i}": Tensor(memory[i]) for i in range(2)}
    for layer in layers.values():
        layer.device = "cuda:0"
    arena = kvshm.Arena.create(arena_name, blocks=8, block_bytes=2 * PIECE, pin="off")
    pool = device.Pool(arena, layers, ROWS)
    arena.wait_device(10)
    loads, stores = cuda.streams[1:]
    cuda.log.clear()
    yield NS(cuda=cuda, memory=memory, arena=arena, pool=pool, loads=loads, stores=stores,
             row=lambda i: memory[:, i].tobytes())
    for stream in (loads, stores):
        stream.run()
    if not arena.closed:
        pool.close()
        assert arena.is_valid() == []
        assert arena.stats().blocks_held == 0
        arena.close()


def test_the_arena_is_registered_and_given_back(one):
    assert one.arena.device().state == DeviceState.REGISTERED
    assert one.pool.status().registered == 8 * 2 * PIECE and one.pool.status().note == ""
    one.pool.close()
    assert one.arena.device().state == DeviceState.NONE


def test_a_store_is_published_behind_its_event(one):
    ids = one.pool.allocate(2)
    stored = one.pool.offload(ids, keys(2))
    # On a stream of its own, behind what the engine's has been given.
    assert one.cuda.log == [("wait", "2", "engine", 0), ("record", "2", 4)]
    assert not stored.done() and stored.codes.tolist() == [2, 2]
    assert one.arena.stats().blocks_filling == 2 and len(one.arena.match(keys(2))) == 0
    assert not stored.wait(0.05), "nobody has run the stream"
    one.pool.release(ids)
    assert one.pool.status().in_use == 2, "they are still read"
    one.stores.run()
    assert stored.wait(5) and stored.codes.tolist() == [0, 0]
    with one.arena.match(keys(2)) as hit:
        assert [bytes(hit.view(i)) for i in range(2)] == [one.row(i) for i in ids]
    assert one.pool.status().in_use == 0


def test_a_load_holds_the_blocks_until_it_has_passed(one):
    lease = store(one.arena, keys(3))
    want = [bytes(lease.view(i)) for i in range(3)]
    loaded = one.pool.onboard(lease, keys(3))
    lease.release()
    assert not loaded.done() and one.arena.evict(keys(3)) == 0, "they are still read"
    assert len(one.pool.match(keys(3))) == 0, "not found before its bytes are there"
    one.loads.run()
    assert loaded.done() and loaded.codes.tolist() == [0] * 3
    assert [one.row(i) for i in loaded.ids] == want
    assert one.pool.match(keys(3)).tolist() == loaded.ids.tolist()
    assert one.arena.evict(keys(3)) == 3


def test_order_makes_the_engine_wait_and_nobody_else(one):
    with store(one.arena, keys(1)) as lease:
        loaded = one.pool.onboard(lease, keys(1))
        loaded.order()
        assert one.cuda.log[-1][:3] == ("wait", "engine", "1") and not loaded.done()
        one.cuda.current.run()
        assert loaded.done()


def test_45_a_load_that_is_refused(one):
    with store(one.arena, keys(2)) as lease:
        one.cuda.fail_copy(1)
        loaded = one.pool.onboard(lease, keys(2))
        assert not loaded.done(), "what was begun may still be written"
        one.loads.run()
        assert loaded.done() and (loaded.codes < 0).all()
    assert loaded.ids.tolist() == [NONE, NONE] and loaded.reason
    assert len(one.pool.match(keys(2))) == 0 and one.pool.status().free == ROWS


def test_45_a_store_that_is_refused(one):
    ids = one.pool.allocate(2)
    one.cuda.fail_copy(1)
    stored = one.pool.offload(ids, keys(2))
    assert one.arena.stats().blocks_filling == 2, "not free before what was begun has ended"
    one.stores.run()
    assert stored.done() and stored.codes.tolist() == [-errno.EIO] * 2
    assert not one.arena.presence(keys(2)).any() and one.arena.stats().blocks_filling == 0
    assert one.pool.status().in_use == 2, "the caller's blocks stay its own"


def test_45_a_lost_device(one, monkeypatch):
    """Nothing is known of its copies: what they write to is neither published nor given out."""
    ids = one.pool.allocate(1)
    with store(one.arena, keys(1, 5)) as lease:
        loaded = one.pool.onboard(lease, keys(1, 5))
        stored = one.pool.offload(ids, keys(1))

        def broken():
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        for transfer in (loaded, stored):
            monkeypatch.setattr(transfer._event, "query", broken)
        assert loaded.done() and stored.done()
    assert loaded.codes.tolist() == stored.codes.tolist() == [-errno.EIO]
    assert "illegal memory access" in loaded.reason and loaded.ids.tolist() == [NONE]
    status = one.pool.status()
    assert status.lost == 2 and "lost" in status.note and status.in_use == 2
    assert one.arena.stats().blocks_filling == 1 and not one.arena.presence(keys(1))[0] & 1
    one.pool._lost.clear()


def test_close_has_a_limit(one):
    stored = one.pool.offload(one.pool.allocate(1), keys(1))
    begun = time.monotonic()
    with pytest.raises(kvshm.Busy, match="1 transfers"):
        one.pool.close(timeout=0.1)
    assert time.monotonic() - begun < 2
    one.stores.run()
    one.pool.close()
    assert stored.copied == 1


def test_a_card_that_refuses_registration(arena_name, monkeypatch):
    """All works, slower, and the status says so."""
    cuda = Cuda(hold=False)
    monkeypatch.setitem(sys.modules, "torch", cuda.module())
    memory = Tensor(np.zeros((4, 64), np.uint8))
    memory.device = "cuda:0"
    with kvshm.Arena.create(arena_name, blocks=4, block_bytes=64, pin="off") as arena:
        with device.Pool(Refusing(arena), {"a": memory}, 4) as pool:
            assert "registered with the device" in pool.status().note
            assert pool.offload(pool.allocate(1), keys(1)).wait(5)


class Refusing:
    def __init__(self, arena):
        self._arena = arena

    def __getattr__(self, name):
        return getattr(self._arena, name)

    def register_device(self, *_, **__):
        raise kvshm.Unsupported("no memory to register with")
