# SPDX-License-Identifier: Apache-2.0
"""The same copies for device memory: begun on streams, ended by events, waited for by nobody.

A save reads the engine's blocks on a stream of its own, behind what the step has computed; its
blocks are published when its event has passed. A synchronous load goes onto the engine's own
stream, before its forward; an asynchronous one onto a second stream. The arena is registered with
the device in the background; until it is, copies are slower and hold the host up, no more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import kvshm
from kvshm.paged import Pages

from .metadata import NOWHERE, LoadJob, Result, SaveJob
from .transfers import HostTransfers

log = logging.getLogger("vllm.kvshm")


@dataclass
class _Load:
    job: LoadJob
    result: Result
    leases: list[kvshm.Lease]  # kept until the last byte has been read
    event: Any
    begin: float


@dataclass
class _Save:
    job: SaveJob
    fill: kvshm.Fill
    event: Any
    begin: float
    failed_at: int


class CudaTransfers(HostTransfers):
    """Threads: the worker's only."""

    def __init__(self, arena: kvshm.Arena, pages: Mapping[int, Pages], part: int,
                 load_timeout: float) -> None:
        super().__init__(arena, pages, part, load_timeout)
        self._reads, self._writes = torch.cuda.Stream(), torch.cuda.Stream()
        self._loads: list[_Load] = []
        self._ended: list[_Load] = []  # synchronous ones, reported already
        self._saves: dict[int, _Save] = {}
        try:
            arena.register_device("cuda", timeout=0)
        except kvshm.TimedOut:
            pass  # it goes on in the background
        except kvshm.Error as error:
            log.warning("kvshm: the arena is not registered with the device: %s", error)

    # ---- loads ---------------------------------------------------------------------------------

    def load(self, job: LoadJob) -> Result:
        # Ordered before the forward by the stream that both are on.
        entry = self._begin_load(job, torch.cuda.current_stream())
        self._ended.append(entry)
        return entry.result

    def later(self, job: LoadJob) -> None:
        # The blocks may still be read by what the engine computes for their last owner.
        self._writes.wait_stream(torch.cuda.current_stream())
        self._loads.append(self._begin_load(job, self._writes))

    def _begin_load(self, job: LoadJob, stream: Any) -> _Load:
        begin = time.perf_counter()
        leases: list[kvshm.Lease] = []
        done = nbytes = 0
        failed_at = 0 if job.lost else NOWHERE
        for piece in () if job.lost else job.pieces:
            pages = self._pages[piece.group]
            good = self._enqueue_load(pages, piece.handles, piece.rows, stream, leases)
            done += good
            nbytes += good * pages.slice_bytes
            if good < len(piece.rows):
                failed_at = done
                break
        event = torch.cuda.Event()
        event.record(stream)
        return _Load(job, Result(1, failed_at, 0.0, nbytes), leases, event, begin)

    def _enqueue_load(self, pages: Pages, handles: np.ndarray, rows: np.ndarray, stream: Any,
                      leases: list[kvshm.Lease]) -> int:
        """How many of the blocks are being copied."""
        try:
            lease = self._arena.pin(handles, tag="vllm load")
            if lease is None:
                return 0
            leases.append(lease)
            codes = pages.load(lease, rows, part=self._part, stream=stream.cuda_stream)
        except kvshm.Error as error:
            log.warning("kvshm: a load was refused: %s", error)
            return 0
        bad = np.flatnonzero(codes < 0)
        return int(bad[0]) if len(bad) else len(rows)

    def finished(self) -> list[tuple[LoadJob, Result]]:
        self._ended = [entry for entry in self._ended if not _over(entry)]
        over = []
        for entry in list(self._loads):
            if _over(entry):
                self._loads.remove(entry)
                entry.result.seconds = time.perf_counter() - entry.begin
                over.append((entry.job, entry.result))
        return over

    # ---- saves ---------------------------------------------------------------------------------

    def save(self, job: SaveJob) -> Result | None:
        begin = time.perf_counter()
        pages = self._pages[job.piece.group]
        try:
            fill = self._arena.join(job.piece.handles)
        except kvshm.Error:
            return Result(1, failed_at=0)
        self._reads.wait_stream(torch.cuda.current_stream())
        failed_at = NOWHERE
        try:
            codes = pages.store(fill, job.piece.rows, part=self._part,
                                stream=self._reads.cuda_stream)
            bad = np.flatnonzero(codes < 0)
            if len(bad):
                failed_at = int(bad[0])
        except kvshm.Error:
            failed_at = 0
        # Also after a failure: what was begun may still be written to the blocks.
        event = torch.cuda.Event()
        event.record(self._reads)
        self._saves[job.job] = _Save(job, fill, event, begin, failed_at)
        return None

    def saved(self) -> list[tuple[int, Result]]:
        over = []
        for number, entry in list(self._saves.items()):
            if entry.event.query():
                del self._saves[number]
                over.append((number, self._publish(entry)))
        return over

    def _publish(self, entry: _Save) -> Result:
        pages = self._pages[entry.job.piece.group]
        failed_at = entry.failed_at
        if failed_at == NOWHERE:
            try:
                codes = pages.finish(entry.fill, part=self._part)
                bad = np.flatnonzero(codes < 0)
                if len(bad):
                    failed_at = int(bad[0])
            except kvshm.Error:
                failed_at = 0
        entry.fill.abort()
        good = min(failed_at, len(entry.job.piece.rows))
        return Result(1, failed_at, time.perf_counter() - entry.begin, good * pages.slice_bytes)

    def flush(self, jobs: Sequence[int]) -> None:
        for number in jobs:
            entry = self._saves.get(number)
            if entry is not None:
                entry.event.synchronize()

    def close(self) -> None:
        """Waits for all copies; `finished` and `saved` tell of them once more."""
        self._reads.synchronize()
        self._writes.synchronize()
        for entry in self._ended:
            entry.event.synchronize()
        super().close()


def _over(entry: _Load) -> bool:
    if not entry.event.query():
        return False
    for lease in entry.leases:
        lease.release()
    return True
