# SPDX-License-Identifier: Apache-2.0
"""Device memory under the connector: run by test_cuda.py in a process that has the fake driver."""
from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace as NS

import kvshm
import numpy as np
import pytest
from kvshm import paged
from support.arenas import keys
from support.mock_cuda import Cuda
from support.mock_engine import BLOCK
from support.mock_model import Tensor

ROWS, PIECE = 8, 256
NOWHERE = 1 << 62


@pytest.fixture
def connector(module, monkeypatch):
    """connector(hold): the modules of the connector on a stand-in for torch.cuda."""
    def make(hold=True):
        cuda = Cuda(hold)
        monkeypatch.setitem(sys.modules, "torch", cuda.module())
        package = module.__name__.rpartition(".")[0]
        return NS(cuda=cuda, module=importlib.import_module(f"{package}.cuda"),
                  jobs=importlib.import_module(f"{package}.metadata"))
    return make


class Rank:
    """A worker's transfers between two layers of "device" memory and an arena."""

    def __init__(self, parts, arena):
        self.cuda, self.jobs, self.scheduler = parts.cuda, parts.jobs, arena
        self.memory = np.random.default_rng(1).integers(0, 256, (2, ROWS, PIECE), np.uint8)
        layers = {f"layers.{i}": Tensor(self.memory[i]) for i in range(2)}
        for layer in layers.values():
            layer.device = "cuda:0"
        self.pages = paged.runs_of(layers, ROWS)
        self.arena = kvshm.Arena.attach(arena.name)
        self.transfers = parts.module.CudaTransfers(self.arena, {0: self.pages}, 0, 10.0)
        self.cuda.log.clear()
        self.reads, self.writes = self.cuda.streams[1:]

    def row(self, number):
        return self.memory[:, number].tobytes()

    def save(self, number, fill, rows):
        piece = self.jobs.Piece(0, fill.handle_array, np.array(rows, np.uint32))
        return self.transfers.save(self.jobs.SaveJob(number, "r", piece))

    def stored(self, seed, *contents):
        """Blocks of these bytes, made by the scheduler's process: their keys and handles."""
        wanted = keys(len(contents), seed)
        with self.scheduler.allocate(len(contents), keys=wanted) as fill:
            for i, content in enumerate(contents):
                fill.copy_in(i, content)
            lease = fill.register()
        handles = lease.handle_array
        lease.release()
        return wanted, handles

    def job(self, number, *pieces, waits=True, lost=False):
        return self.jobs.LoadJob(number, "r", tuple(
            self.jobs.Piece(0, handles, np.array(rows, np.uint32)) for handles, rows in pieces),
            waits, lost)


@pytest.fixture
def rank(connector, arena_name):
    arena = kvshm.Arena.create(arena_name, blocks=8, block_bytes=2 * PIECE, pin="off")
    one = Rank(connector(), arena)
    yield one
    one.transfers.close()
    one.transfers.finished(), one.transfers.saved()
    one.arena.close()
    assert arena.is_valid() == []
    assert arena.stats().blocks_held == 0
    arena.close()


def test_a_save_is_published_behind_its_event(rank):
    fill = rank.scheduler.allocate(2, keys=keys(2))
    assert rank.save(7, fill, [5, 3]) is None
    # Behind what the engine has computed, and on a stream of its own.
    assert rank.cuda.log == [("wait", "1", "engine", 0), ("record", "1", 4)]
    fill.abort()  # the scheduler dies: the worker is a member
    assert rank.transfers.saved() == []
    assert len(rank.scheduler.match(keys(2))) == 0
    assert rank.writes.run() == rank.cuda.current.run() == 0
    assert rank.transfers.saved() == []
    assert rank.reads.run() == 4
    assert len(rank.scheduler.match(keys(2))) == 0, "nobody has asked yet"
    ((number, result),) = rank.transfers.saved()
    assert (number, result.reports, result.failed_at, result.nbytes) == (7, 1, NOWHERE, 4 * PIECE)
    assert result.seconds > 0 and rank.transfers.saved() == []
    with rank.scheduler.match(keys(2)) as hit:
        assert [bytes(hit.view(i)) for i in range(2)] == [rank.row(5), rank.row(3)]


def test_a_flush_waits_for_the_jobs_it_names(rank):
    fills = [rank.scheduler.allocate(1, keys=keys(1, seed)) for seed in (1, 2)]
    for number, fill in enumerate(fills):
        assert rank.save(number, fill, [number]) is None
    rank.cuda.log.clear()
    rank.transfers.flush([99])
    assert rank.cuda.log == [] and rank.transfers.saved() == []
    was = rank.row(1)
    rank.transfers.flush([1])
    assert rank.cuda.log == [("synchronize", "1", 4)]
    rank.memory[:] = 0  # the engine's blocks are others' now
    assert [number for number, _ in rank.transfers.saved()] == [0, 1]
    with rank.scheduler.match(keys(1, 2)) as hit:
        assert bytes(hit.view(0)) == was
    for fill in fills:
        fill.abort()


@pytest.mark.parametrize("how", ["refused", "row"])
def test_a_save_that_fails(rank, how):
    fill = rank.scheduler.allocate(3, keys=keys(3))
    if how == "refused":
        rank.cuda.fail_copy(3)
    assert rank.save(1, fill, [0, 1, ROWS if how == "row" else 2]) is None
    assert rank.transfers.saved() == [], "what was begun may still be written"
    rank.reads.run()
    ((number, result),) = rank.transfers.saved()
    good = {"refused": 0, "row": 2}[how]
    assert (number, result.failed_at, result.nbytes) == (1, good, good * 2 * PIECE)
    fill.abort()
    assert len(rank.scheduler.match(keys(3))) == 0
    assert rank.scheduler.stats().blocks_filling == 0


def test_a_save_of_a_fill_that_is_over(rank):
    fill = rank.scheduler.allocate(1, keys=keys(1))
    handles = NS(handle_array=fill.handle_array)
    fill.abort()
    assert rank.save(1, handles, [0]).failed_at == 0
    assert rank.cuda.log == [] and rank.transfers.saved() == []


@pytest.mark.parametrize("waits", [True, False])
def test_a_load_holds_its_blocks_until_its_event(rank, waits):
    contents = [bytes([i]) * (2 * PIECE) for i in (1, 2)]
    names, handles = rank.stored(1, *contents)
    job = rank.job(4, (handles, [6, 2]), waits=waits)
    if waits:
        result = rank.transfers.load(job)
        assert (result.failed_at, result.nbytes) == (NOWHERE, 4 * PIECE)
        stream, behind = rank.cuda.current, []
    else:
        assert rank.transfers.later(job) is None
        # The rows' last owner may still be computed.
        stream, behind = rank.writes, [("wait", "2", "engine", 0)]
    assert rank.cuda.log == [*behind, ("record", stream.name, 4)]
    assert rank.transfers.finished() == []
    assert rank.scheduler.stats().blocks_held == 2
    rank.scheduler.evict(names)
    with rank.scheduler.allocate(6) as fill:
        for i in range(6):
            fill.copy_in(i, bytes(2 * PIECE))
    assert rank.reads.run() == 0 and stream.run() == 4
    assert [rank.row(6), rank.row(2)] == contents
    over = rank.transfers.finished()
    assert [(one.job, result.failed_at) for one, result in over] == (
        [] if waits else [(4, NOWHERE)])
    assert rank.transfers.finished() == [] and rank.scheduler.stats().blocks_held == 0


@pytest.mark.parametrize("waits", [True, False])
def test_a_load_that_fails_on_the_way(rank, waits):
    def run(job):
        if waits:
            return rank.transfers.load(job)
        rank.transfers.later(job)
        rank.writes.run()
        ((one, result),) = rank.transfers.finished()
        assert one is job
        return result

    names, handles = rank.stored(1, *[bytes([i]) * 512 for i in range(3)])
    assert run(rank.job(1, (handles, [0, ROWS, 2]), waits=waits)).failed_at == 1
    # A second piece whose block has gone: counted over the pieces; and all of it is known as lost.
    gone_names, gone = rank.stored(2, bytes(512))
    rank.scheduler.evict(gone_names)
    result = run(rank.job(2, (handles, [0, 1, 2]), (gone, [3]), waits=waits))
    assert (result.failed_at, result.nbytes) == (3, 6 * PIECE)
    # The first one decides, whatever comes behind it.
    job = rank.job(5, (gone, [3]), (handles, [0, 1, 2]), (gone, [4]), waits=waits)
    assert run(job).failed_at == 0
    before = rank.cuda.copies()
    assert run(rank.job(3, (handles, [0]), waits=waits, lost=True)).failed_at == 0
    assert rank.cuda.copies() == before
    # The driver refuses: none of the batch is known to come.
    rank.cuda.fail_copy(2)
    assert run(rank.job(4, (handles, [0, 1, 2]), waits=waits)).failed_at == 0
    rank.cuda.current.run()


def test_close_waits_and_loses_no_report(rank):
    _, handles = rank.stored(1, b"x" * 512)
    fill = rank.scheduler.allocate(1, keys=keys(1, 2))
    assert rank.save(1, fill, [0]) is None
    rank.transfers.later(rank.job(2, (handles, [3]), waits=False))
    rank.transfers.load(rank.job(3, (handles, [4])))
    rank.transfers.close()
    assert rank.row(3) == rank.row(4) == b"x" * 512
    assert [job.job for job, _ in rank.transfers.finished()] == [2]
    assert [(number, result.failed_at) for number, result in rank.transfers.saved()] == [
        (1, NOWHERE)]
    fill.abort()


def test_close_waits_for_what_the_engine_waits_for(rank):
    _, handles = rank.stored(1, b"x" * 512)
    rank.transfers.load(rank.job(3, (handles, [4])))
    rank.transfers.close()
    assert rank.row(4) == b"x" * 512


@pytest.mark.parametrize("load", ["sync", "async"])
def test_engines_with_tensors_on_a_device(connector, engine, prompt, monkeypatch, load):
    """Their memory is "cuda:0": copies go by streams, and what one stored the other computes upon.
    Events pass late."""
    parts = connector(hold=False)
    init = Tensor.__init__

    def on_device(self, array):
        init(self, array)
        self.device = "cuda:0"

    monkeypatch.setattr(Tensor, "__init__", on_device)
    tokens = prompt(12 * BLOCK + 1)
    a = engine()
    one = a.run(tokens, 2 * BLOCK)
    assert one.output == a.model.generate(tokens, 2 * BLOCK)
    for _ in range(20):
        a.step()
    b = engine(options={"load": load})
    other = b.run([*tokens[:12 * BLOCK], 5], 3)
    assert other.output == b.model.generate([*tokens[:12 * BLOCK], 5], 3)
    assert other.external == 12 * BLOCK
    assert parts.cuda.copies() >= 12 * 2 * 2 and parts.cuda.asked > 0
