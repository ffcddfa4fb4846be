# SPDX-License-Identifier: Apache-2.0
"""A worker's side: the copies of the jobs that vLLM hands over, by the connector's transfers."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from vllm.v1.kv_offload.base import GPULoadStoreSpec, OffloadingWorker, TransferResult

import kvshm
from kvshm.paged import Pages

from ..host import Host
from ..metadata import NOWHERE, ArenaRef, LoadJob, Piece, Result, SaveJob
from ..transfers import HostTransfers
from .records import ArenaBlocks

log = logging.getLogger("vllm.kvshm")

WAIT = 60.0  # seconds, for copies to end


@dataclass
class _Job:
    load: bool
    left: int  # parts of it that are not over
    result: Result


class KvshmOffloadingWorker(OffloadingWorker):
    """Threads: the worker's only. vLLM ends the engine when a job fails. A store that fails is
    therefore told as done: nothing was published, so nothing is found. A load that fails has to be
    told; the scheduler's hold keeps it from happening."""

    def __init__(self, config: kvshm.Config, host: Host, pages: Mapping[int, Pages],
                 part: int) -> None:
        """pages: by the group's place in a GPULoadStoreSpec. part: this rank's slice of a block."""
        self._config, self._host, self._pages, self._part = config, host, pages, part
        self._numbers = itertools.count()
        self._jobs: dict[int, _Job] = {}
        self._parts: dict[int, int] = {}  # of a job: SaveJob or LoadJob number to vLLM's
        self._ended: list[TransferResult] = []
        self._arena = host.arena
        self._uuid = host.ref.uuid if host.ref is not None else b""
        self._transfers = self._start(host.arena)

    def _start(self, arena: kvshm.Arena | None) -> HostTransfers | None:
        if arena is None:
            return None
        kind: type[HostTransfers] = HostTransfers
        if next(iter(self._pages.values())).device.startswith("cuda"):  # "cuda:0"
            from ..cuda import CudaTransfers

            kind = CudaTransfers
        # A load has no time limit: vLLM knows no load that is given up.
        return kind(arena, self._pages, self._part, float("inf"))

    def _attached(self, ref: ArenaRef | None) -> HostTransfers | None:
        """To the arena that the scheduler names: it was made anew if it is another one."""
        if ref is None or ref.uuid == self._uuid:
            return self._transfers
        self._stop()
        self._uuid = ref.uuid
        try:
            arena = kvshm.Arena.attach(
                ref.name, dir=ref.directory, identity=ref.identity, block_bytes=ref.block_bytes,
                label="vllm offloading worker", timeout=self._config.timeout)
        except kvshm.Error as error:
            log.warning("kvshm: cannot attach to %s: %s", ref.name, error)
            return None
        if bytes(arena.info().uuid) != ref.uuid:
            arena.close()
            return None
        self._arena = arena
        self._transfers = self._start(arena)
        return self._transfers

    def _stop(self) -> None:
        transfers, self._transfers = self._transfers, None
        if transfers is not None:
            transfers.close()
            self._collect(transfers)
        arena, self._arena = self._arena, None
        try:
            if arena is not None:
                arena.close(timeout=self._config.timeout)
        except kvshm.Error as error:
            log.warning("kvshm: %s", error)

    # ---- jobs ----------------------------------------------------------------------------------

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: ArenaBlocks) -> bool:
        pieces = list(self._pieces(src_spec, dst_spec))
        self._jobs[job_id] = _Job(False, len(pieces) + 1, Result(1))
        transfers = self._attached(dst_spec.ref)
        for piece in pieces:
            number = next(self._numbers)
            self._parts[number] = job_id
            result: Result | None = Result(1, failed_at=0)
            try:
                if transfers is not None:
                    result = transfers.save(SaveJob(number, "", piece))
            except Exception:
                log.exception("kvshm: a store failed")
            if result is not None:
                self._over(number, result)
        self._done(job_id, Result(0))
        return True

    def submit_load(self, job_id: int, src_spec: ArenaBlocks, dst_spec: GPULoadStoreSpec) -> bool:
        pieces = tuple(self._pieces(dst_spec, src_spec))
        lost = not pieces and len(dst_spec.block_ids) > 0
        self._jobs[job_id] = _Job(True, 1, Result(0))
        number = next(self._numbers)
        self._parts[number] = job_id
        transfers = self._attached(src_spec.ref)
        if transfers is None:
            self._over(number, Result(1, failed_at=0))
        else:
            transfers.later(LoadJob(number, "", pieces, waits=False, lost=lost))
        return True

    def _pieces(self, engine: GPULoadStoreSpec, arena: ArenaBlocks) -> Iterator[Piece]:
        """Per group which block belongs to which. None at all if the two do not fit together:
        nothing is copied to or from the wrong place."""
        rows = np.asarray(engine.block_ids, np.uint32)
        if len(rows) != len(arena.handles):
            log.error("kvshm: %d blocks of the engine, %d of the arena: not copied", len(rows),
                      len(arena.handles))
            return
        begin = 0
        for group, size in enumerate(engine.group_sizes):
            own = rows[begin:begin + size]
            wanted = own != 0  # vLLM keeps no block for what has left the window
            if wanted.any():
                yield Piece(group, arena.handles[begin:begin + size][wanted], own[wanted])
            begin += size

    # ---- their ends ----------------------------------------------------------------------------

    def _over(self, number: int, result: Result) -> None:
        self._done(self._parts.pop(number), result)

    def _done(self, job_id: int, result: Result) -> None:
        job = self._jobs[job_id]
        job.result = job.result.add(result)
        job.left -= 1
        if job.left:
            return
        del self._jobs[job_id]
        good = job.result.failed_at == NOWHERE
        if not good:
            log.log(logging.ERROR if job.load else logging.WARNING, "kvshm: %s %d failed",
                    "load" if job.load else "store", job_id)
        self._ended.append(TransferResult(job_id, good or not job.load, job.result.nbytes,
                                          job.result.seconds))

    def _collect(self, transfers: HostTransfers) -> None:
        for job, result in transfers.finished():
            self._over(job.job, result)
        for number, result in transfers.saved():
            self._over(number, result)

    def get_finished(self) -> list[TransferResult]:
        if self._transfers is not None:
            self._collect(self._transfers)
        ended, self._ended = self._ended, []
        return ended

    def wait(self, job_ids: set[int]) -> None:
        """Until they no longer touch the engine's blocks. TimedOut: a copy hangs; going on would
        let the engine overwrite what it reads."""
        transfers = self._transfers
        if transfers is None:
            return
        transfers.flush([number for number, job in self._parts.items() if job in job_ids])
        limit = time.monotonic() + WAIT
        while not self._jobs.keys().isdisjoint(job_ids):
            self._collect(transfers)
            if time.monotonic() > limit:
                raise kvshm.TimedOut(f"copies did not end within {WAIT:g} s")
            time.sleep(0.0005)

    def shutdown(self) -> None:
        self._stop()
