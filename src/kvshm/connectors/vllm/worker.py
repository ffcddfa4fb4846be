# SPDX-License-Identifier: Apache-2.0
"""A worker's side: it does the copies that the scheduler's metadata names, and reports each."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import kvshm
from kvshm.paged import Pages, runs_of

from . import host
from .groups import Group, fails_by_request, groups_of, replicated, tokens_per_hash
from .layout import slice_bytes
from .metadata import NOWHERE, ArenaRef, KvshmMetadata, KvshmWorkerMeta, LoadJob, Result
from .transfers import HostTransfers

log = logging.getLogger("vllm.kvshm")

RETRY = 10.0  # seconds between attempts to attach to an arena that could not be attached


class WorkerSide:
    """Threads: the worker's only. Each job is reported exactly once."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, config: kvshm.Config,
                 label: str, rank: int) -> None:
        self.config, self.rank = config, rank
        self._label = label or f"vllm worker {rank}"
        self.groups = groups_of(kv_cache_config, tokens_per_hash(vllm_config, kv_cache_config))
        self._blocks = kv_cache_config.num_blocks
        self._once = replicated(self.groups)
        self._by_request = fails_by_request(kv_cache_config, self.groups)
        self.pages: dict[int, Pages] = {}
        self._caches: dict[str, Any] = {}
        self.arena: kvshm.Arena | None = None
        self._ref: ArenaRef | None = None
        self._retry_at = self._tier_at = 0.0
        self._disk = False  # what it publishes goes to the arena's tier, too
        self._transfers: HostTransfers | None = None
        self._failures = 0  # synchronous loads that failed
        self._results: dict[int, Result] = {}
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._bad_rows: set[int] = set()

    # ---- the engine's tensors ------------------------------------------------------------------

    def register(self, caches: Mapping[str, Any]) -> None:
        """Raises InvalidArgument, naming the layer, for a layout that cannot be copied."""
        self._caches = dict(caches)
        room = slice_bytes(self.groups)
        for group in self.groups:
            pages = self._pages_of(group, caches)
            if pages.slice_bytes > room:
                raise kvshm.InvalidArgument(
                    f"layer {group.layers[0]}: its group has {pages.slice_bytes} bytes a block, "
                    f"the configuration says {room}")
            self.pages[group.index] = pages
        if self.arena is not None:
            self._start_transfers(self.arena)

    def _pages_of(self, group: Group, caches: Mapping[str, Any]) -> Pages:
        missing = [name for name in group.layers if name not in caches]
        if missing:
            raise kvshm.InvalidArgument(f"layer {missing[0]}: no KV cache was registered for it")
        # An attention kernel may divide a block of the engine into several of its own.
        ratio = max(1, caches[group.layers[0]].shape[0] // self._blocks)
        return runs_of({name: caches[name] for name in group.layers}, self._blocks, ratio)

    def unregister(self) -> None:
        """The tensors' memory is about to go (sleep): it is not touched until `restore`."""
        self._stop_transfers()
        self.pages = {}

    def restore(self) -> None:
        """The same tensors have memory again."""
        if self._caches and not self.pages:
            self.register(self._caches)

    # ---- the arena -----------------------------------------------------------------------------

    def _attach(self, ref: ArenaRef) -> None:
        """To the arena that the scheduler names. What cannot be attached costs misses."""
        known = self._ref is not None and ref.uuid == self._ref.uuid
        if known and (self.arena is not None or time.monotonic() < self._retry_at):
            self._open_tier()
            return
        self._detach()
        self._ref, self._retry_at = ref, time.monotonic() + RETRY
        try:
            arena = kvshm.Arena.attach(
                ref.name, dir=ref.directory, identity=ref.identity, block_bytes=ref.block_bytes,
                label=self._label, timeout=self.config.timeout)
        except kvshm.Error as error:
            log.warning("kvshm: rank %d cannot attach to %s: %s", self.rank, ref.name, error)
            return
        if bytes(arena.info().uuid) != ref.uuid:  # made anew in between
            arena.close()
            return
        self.arena = arena
        self._tier_at = 0.0
        self._open_tier()
        if self.pages:
            self._start_transfers(arena)

    def _open_tier(self) -> None:
        """Who publishes a block writes it down, too, and that is the last rank that stores."""
        if self._disk or self.arena is None or time.monotonic() < self._tier_at:
            return
        if not (self.config.tier and self.config.write and self._writes()):
            return
        self._tier_at = time.monotonic() + RETRY
        try:
            self._disk = host.join_tier(self.arena, self.config)
        except kvshm.Error as error:
            log.warning("kvshm: rank %d: nothing is kept on disk: %s", self.rank, error)

    def _start_transfers(self, arena: kvshm.Arena) -> None:
        self._stop_transfers()
        part = 0 if self._once else self.rank
        kind: type[HostTransfers] = HostTransfers
        if next(iter(self.pages.values())).device.startswith("cuda"):  # "cuda:0"
            from .cuda import CudaTransfers

            kind = CudaTransfers
        self._transfers = kind(arena, self.pages, part, self.config.load_timeout)

    def _stop_transfers(self) -> None:
        transfers, self._transfers = self._transfers, None
        if transfers is not None:
            transfers.close()
            self._collect(transfers)

    def _detach(self) -> None:
        self._stop_transfers()
        arena, self.arena = self.arena, None
        disk, self._disk = self._disk, False
        if arena is not None:
            try:
                host.leave(arena, disk, self.config.timeout)
            except kvshm.Error as error:
                log.warning("kvshm: rank %d: %s", self.rank, error)

    # ---- steps ---------------------------------------------------------------------------------

    def begin(self, meta: KvshmMetadata) -> None:
        """Before anything of the step runs: blocks that it gives to others are no longer read."""
        if meta.flush and self._transfers is not None:
            self._transfers.flush(meta.flush)

    def load(self, meta: KvshmMetadata) -> None:
        if meta.arena is not None:
            self._attach(meta.arena)
        for job in meta.loads:
            try:
                result = self._load(job)
            except Exception:
                log.exception("kvshm: rank %d: a load failed", self.rank)
                result = Result(1, failed_at=0)
            if result is not None:
                self._loaded(job, result)

    def _load(self, job: LoadJob) -> Result | None:
        transfers = self._transfers
        if transfers is None:
            return Result(1, failed_at=0)
        if job.waits:
            return transfers.load(job)
        transfers.later(job)
        return None

    def _loaded(self, job: LoadJob, result: Result) -> None:
        self._results[job.job] = result
        if not job.waits:
            self._received.add(job.request)
        if result.failed_at == NOWHERE:
            return
        if job.waits:
            self._failures += 1
        if self._by_request:
            self._failed.add(job.request)
        else:
            rows = [row for piece in job.pieces for row in piece.rows.tolist()]
            self._bad_rows.update(rows[result.failed_at:])

    def save(self, meta: KvshmMetadata) -> None:
        # After a load that failed, this step and those already scheduled have computed upon bytes
        # that are not there: nothing of it is kept, until the scheduler knows.
        wrong = self._failures > meta.failures_seen.get(self.rank, 0)
        for job in meta.saves if self._writes() else ():
            try:
                transfers = None if wrong else self._transfers
                result = Result(1, failed_at=0) if transfers is None else transfers.save(job)
            except Exception:
                log.exception("kvshm: rank %d: a save failed", self.rank)
                result = Result(1, failed_at=0)
            if result is not None:
                self._results[job.job] = result

    def _writes(self) -> bool:
        return not self._once or self.rank == 0

    def _collect(self, transfers: HostTransfers) -> None:
        for job, result in transfers.finished():
            self._loaded(job, result)
        for number, result in transfers.saved():
            self._results[number] = result

    def received(self) -> tuple[set[str], set[str]]:
        """Requests whose asynchronous load is over since the last call, and those that failed."""
        if self._transfers is not None:
            self._collect(self._transfers)
        received, self._received = self._received, set()
        failed, self._failed = self._failed, set()
        return received, failed

    def bad_rows(self) -> set[int]:
        """The engine's blocks that were not loaded, since the last call."""
        rows, self._bad_rows = self._bad_rows, set()
        return rows

    def report(self) -> KvshmWorkerMeta | None:
        if not self._results:
            return None
        results, self._results = self._results, {}
        return KvshmWorkerMeta(results, {self.rank: self._failures})

    def close(self) -> None:
        self._detach()
        self.pages, self._caches = {}, {}
