# SPDX-License-Identifier: Apache-2.0
"""Copies between the engine's KV tensors and arena blocks in host memory: done when they return.

`cuda.py` has the same for device memory, where they are only begun.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

import kvshm
from kvshm.paged import Pages

from .metadata import NOWHERE, LoadJob, Result, SaveJob

log = logging.getLogger("vllm.kvshm")


class HostTransfers:
    """Threads: the worker's; `later` runs loads in one thread of its own, without the GIL."""

    def __init__(self, arena: kvshm.Arena, pages: Mapping[int, Pages], part: int,
                 load_timeout: float) -> None:
        """pages: by KV cache group. part: this rank's slice of an arena block."""
        self._arena, self._pages, self._part = arena, pages, part
        self._load_timeout = load_timeout
        self._pool: ThreadPoolExecutor | None = None
        self._later: list[tuple[LoadJob, Future[Result]]] = []

    # ---- loads ---------------------------------------------------------------------------------

    def load(self, job: LoadJob) -> Result:
        """Now. Never raises: what went wrong is in failed_at."""
        begin = time.perf_counter()
        if job.lost:
            return Result(1, failed_at=0)
        done = nbytes = 0
        for piece in job.pieces:
            pages = self._pages[piece.group]
            failed = _first_failed(lambda: self._load(pages, piece.handles, piece.rows))
            good = min(failed, len(piece.rows))
            nbytes += good * pages.slice_bytes
            done += good
            if failed != NOWHERE:
                return Result(1, done, time.perf_counter() - begin, nbytes)
        return Result(1, NOWHERE, time.perf_counter() - begin, nbytes)

    def _load(self, pages: Pages, handles: np.ndarray, rows: np.ndarray) -> np.ndarray | None:
        # Held by this process too: the scheduler may die while we copy.
        lease = self._arena.pin(handles, tag="vllm load")
        if lease is None:
            return None
        with lease:
            return pages.load(lease, rows, part=self._part)

    def later(self, job: LoadJob) -> None:
        """Begins a load whose end `finished` will tell."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kvshm-load")
        limit = time.monotonic() + self._load_timeout
        self._later.append((job, self._pool.submit(self._load_in_time, job, limit)))

    def _load_in_time(self, job: LoadJob, limit: float) -> Result:
        if time.monotonic() > limit:  # it waited too long behind others; nothing is copied
            return Result(1, failed_at=0)
        return self.load(job)

    def finished(self) -> list[tuple[LoadJob, Result]]:
        """The loads of `later` that have ended since the last call."""
        over, still = [], []
        for job, future in self._later:
            if not future.done():  # asked once: a second answer may be another
                still.append((job, future))
            elif (error := future.exception()) is None:
                over.append((job, future.result()))
            else:
                log.error("kvshm: a load failed", exc_info=error)
                over.append((job, Result(1, failed_at=0)))
        self._later = still
        return over

    # ---- saves ---------------------------------------------------------------------------------

    def save(self, job: SaveJob) -> Result | None:
        """Stores and publishes. None: `saved` tells later. Never raises."""
        begin = time.perf_counter()
        pages = self._pages[job.piece.group]
        failed = _first_failed(lambda: self._save(pages, job))
        good = min(failed, len(job.piece.rows))
        return Result(1, failed, time.perf_counter() - begin, good * pages.slice_bytes)

    def _save(self, pages: Pages, job: SaveJob) -> np.ndarray:
        fill = self._arena.join(job.piece.handles)
        try:
            codes = pages.store(fill, job.piece.rows, part=self._part)
            if (codes == 0).all():
                codes = pages.finish(fill, part=self._part)
        finally:
            fill.abort()  # over by now, unless something failed
        return codes

    def saved(self) -> list[tuple[int, Result]]:
        """(job, result) of saves that have ended since; here each ends in `save`."""
        return []

    def flush(self, jobs: Sequence[int]) -> None:
        """Wait until these saves no longer read the engine's blocks."""

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)


def _first_failed(copy: Callable[[], np.ndarray | None]) -> int:
    """Index of the first block of a copy that failed, or NOWHERE."""
    try:
        codes = copy()
    except kvshm.Error:
        return 0
    if codes is None:
        return 0
    bad = np.flatnonzero(codes < 0)
    return int(bad[0]) if len(bad) else NOWHERE
