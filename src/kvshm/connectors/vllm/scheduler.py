# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: it decides what is loaded and saved, and keeps the holds meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvshm
from kvshm.ahead import Ahead

from . import disk, lookup
from .adapters import adapter_digest
from .events import Events
from .groups import fails_by_request, groups_of, tokens_per_hash, writers_of
from .host import Host
from .identity import confirm_seed, identity_of
from .layout import layout_text, slice_bytes
from .lookups import Lookups
from .metadata import NOWHERE, KvshmMetadata, KvshmWorkerMeta, LoadJob, Piece, Result, SaveJob
from .requests import MAX_SAVE_FAILURES, RequestState
from .saves import Planner, Save, piece_of
from .stats import KvshmStats

log = logging.getLogger("vllm.kvshm")


@dataclass
class Loading:
    """Blocks that the workers copy into the engine; held until all ranks have reported."""

    state: RequestState
    hold: lookup.Hold
    tokens: int
    blocks: int
    left: int  # reports to come
    result: Result


@dataclass
class Saving:
    save: Save
    left: int
    result: Result


class SchedulerSide:
    """Threads: the scheduler's only. Raises only from __init__ and where it says so."""

    def __init__(self, vllm_config: Any, kv_cache_config: Any, config: kvshm.Config,
                 label: str) -> None:
        self.groups = groups_of(kv_cache_config, tokens_per_hash(vllm_config, kv_cache_config))
        self.by_request = fails_by_request(kv_cache_config, self.groups)
        if config.load == "sync" and self.by_request:  # its failures can be told by block only
            raise kvshm.Unsupported(
                "load='sync': for a model with several KV cache groups or a sliding window vLLM "
                "knows no failure of a synchronous load; use load='auto' or 'async'")
        self.config = config
        self.ranks = vllm_config.parallel_config.world_size
        self.writers = writers_of(self.groups, self.ranks)
        layout = layout_text(vllm_config, kv_cache_config, self.groups)
        identity = identity_of(vllm_config, kv_cache_config, layout, config)
        self.host = Host(config, identity, self.writers * slice_bytes(self.groups),
                         label or "vllm scheduler")
        self.waits = config.load == "sync" or (config.load == "auto" and not self.by_request)
        self.planner = Planner(config, self.writers)
        self.stats = KvshmStats()
        self.events = Events(len(self.groups) > 1) if config.events else None
        self.lookups = Lookups(config, self.groups)
        self.states: dict[str, RequestState] = {}
        self.ahead: Ahead | None = None  # of the arena that is in use
        self.loading: dict[int, Loading] = {}
        self.saving: dict[int, Saving] = {}
        self._idle = False  # the last step has nothing scheduled
        self._gathered = False  # for the disk, perhaps: something was stored since it was flushed
        self._next_job = 0
        self._new_loads: list[LoadJob] = []
        self._given: set[int] = set()  # engine blocks that were given out in this step
        self._failures_seen: dict[int, int] = {}  # by rank
        self._hash_algorithm = vllm_config.cache_config.prefix_caching_hash_algo
        self._confirmed = False  # vLLM's hashes begin as the identity says

    # ---- requests ------------------------------------------------------------------------------

    def new_request(self, request: Any) -> RequestState:
        self._confirm()
        self.finish(request.request_id)  # an old one of this name
        adapter = adapter_digest(request.lora_request) if request.lora_request else b""
        state = RequestState(request, self.groups, self.host.identity, adapter)
        self.states[request.request_id] = state
        self._in_line(state)
        return state

    def _in_line(self, state: RequestState) -> None:
        """Long before the engine asks for it, what the disk has of it may be on its way. Of a
        window nobody knows yet where it will be."""
        config = self.config
        arena = self.host.ready() if config.prefetch_ahead and config.tier else None
        if arena is None or not self.host.disk or not config.read:
            return
        if self.ahead is None:
            self.ahead = Ahead(arena, config.prefetch_ahead)
        state.extend_keys()
        limit = state.request.num_tokens - 1
        self.ahead.arrived(state.request.request_id, [
            keys[:limit // group.block_tokens] for group, keys in zip(self.groups, state.keys)
            if not group.partial])

    def _confirm(self) -> None:
        """Once, when vLLM has drawn its seed: later than this object is made."""
        if self._confirmed:
            return
        self._confirmed = True
        try:
            confirm_seed(self._hash_algorithm)
        except kvshm.Unsupported as error:
            log.error("kvshm: %s; nothing is loaded or saved", error)
            self.host.turn_off()
        except ImportError as error:
            log.warning("kvshm: the seed of vLLM's hashes cannot be checked: %s", error)

    def matched(self, request: Any, local: int) -> tuple[int | None, bool]:
        """Tokens beyond `local` that can be loaded, held from now on; and whether by and by. None:
        ask again, some are on their way from the disk."""
        state = self.states.get(request.request_id) or self.new_request(request)
        state.local = local
        arena = self.host.ready()
        if self.host.renewed() or state.epoch != self.host.identity.epoch:
            state.bind(self.host.identity)
        self.lookups.note(state)
        # One token is left to compute: the engine needs its logits.
        limit = request.num_tokens - 1
        if (arena is None or not self.config.read or state.refused
                or getattr(request, "skip_reading_prefix_cache", False)):
            state.drop_hold()
            return 0, False
        begin = time.perf_counter()
        state.extend_keys()
        # The inspector keeps 8 bytes. vLLM's ids end in 8 random digits and begin all alike.
        tag = request.request_id[-8:]
        if self.host.disk and self._fetching(arena, state, local, limit, tag):
            return None, False
        hold = state.hold
        if hold is not None and hold.local == local and hold.boundary <= limit:
            lookup.extend(arena, self.groups, state.keys, hold, limit, tag)
        else:
            state.drop_hold()
            hold = state.hold = lookup.find(arena, self.groups, state.keys, local, limit, tag)
        self.stats.add("lookups")
        self.stats.add("lookup_seconds", time.perf_counter() - begin)
        if hold.tokens < max(1, self.config.min_tokens):
            state.drop_hold()
            return 0, False
        return hold.tokens, not self.waits

    def _fetching(self, arena: kvshm.Arena, state: RequestState, local: int, limit: int,
                  tag: str) -> bool:
        """Whether blocks of it are on their way from the disk. Those that came are held."""
        if state.fetch is None and not state.fetched:
            state.fetched = True
            state.fetch = disk.begin(arena, self.groups, state.keys, local, limit,
                                     self.config.min_tokens, self.config.tier_wait, tag)
        fetch = state.fetch
        if fetch is None or fetch.under_way():
            return fetch is not None
        state.from_disk = fetch.came()
        state.figures.disk_seconds += fetch.seconds
        for field, amount in (
                ("disk_blocks", sum(map(len, state.from_disk))), ("disk_seconds", fetch.seconds),
                ("failed_disk_blocks", fetch.failed), ("late_disk_loads", int(fetch.late))):
            self.stats.add(field, amount)
        # By now it is a matter of memory, and the engine's own cache may have changed.
        hold = lookup.find(arena, self.groups, state.keys, local, limit, tag)
        state.drop_hold()
        state.hold = hold
        return False

    def allocated(self, request: Any, blocks: Any, tokens: int) -> None:
        """The engine made room and wants `tokens` of what `matched` offered."""
        ids = blocks.get_block_ids()
        if self.saving:
            self._given.update(one for table in ids for one in table)
        state = self.states.get(request.request_id)
        hold = None
        if state is not None:
            hold, state.hold = state.hold, None
            state.fetched = False  # after a preemption it may be
            self._admitted(state)
        if tokens == 0:
            if hold is not None:
                hold.release()
            return
        # Told to the engine, so it must be loaded or reported as failed: never dropped.
        if state is None or hold is None:
            raise kvshm.Misuse(f"{request.request_id}: {tokens} tokens to load, nothing is held")
        if tokens < hold.tokens:
            hold.cut(hold.local + tokens)
        self._load(state, hold, ids)

    def _admitted(self, state: RequestState) -> None:
        figures = state.figures
        self._left_line(state.request.request_id)
        if figures.admitted:
            return  # after a preemption, or an asynchronous load that has ended
        figures.admitted = True
        figures.asked = state.request.num_tokens
        figures.local = state.local
        self.stats.add("asked_tokens", figures.asked)
        self.stats.add("local_tokens", figures.local)

    def _left_line(self, request_id: str) -> None:
        if self.ahead is not None:
            self.ahead.begun(request_id)

    def _load(self, state: RequestState, hold: lookup.Hold, ids: Sequence[Sequence[int]]) -> None:
        pieces = []
        lost = False
        for part in hold.parts:
            table = ids[part.group.index]
            rows = np.asarray(table[part.first:part.first + len(part.lease)], np.uint32)
            wanted = rows != 0  # vLLM keeps no block for what has left the window
            try:
                handles = part.lease.handle_array[:len(rows)][wanted]
            except kvshm.Error as error:
                log.warning("kvshm: %s: holds lost: %s", state.request.request_id, error)
                handles, lost = np.empty(0), True
            pieces.append(Piece(part.group.index, handles, rows[wanted]))
        job = self._job()
        self._new_loads.append(
            LoadJob(job, state.request.request_id, tuple(pieces), self.waits, lost))
        blocks = sum(len(piece.rows) for piece in pieces)
        state.jobs += 1
        self.loading[job] = Loading(state, hold, hold.tokens, blocks, self.ranks, Result(0))

    def promise_failed(self, request: Any, blocks: Any, tokens: int) -> None:
        """After an error in `allocated`: what the engine counts on is reported as failed."""
        state = self.states.get(request.request_id)
        if state is not None:
            state.refused = True
        ids = blocks.get_block_ids()
        pieces = tuple(Piece(group.index, np.empty(0), np.asarray(ids[group.index], np.uint32))
                       for group in self.groups)
        self._new_loads.append(
            LoadJob(self._job(), request.request_id, pieces, self.waits, lost=True))

    def finish(self, request_id: str) -> RequestState | None:
        """The request is over, by whatever way. Jobs under way go on and are reported."""
        state = self.states.pop(request_id, None)
        if state is not None:
            self._left_line(request_id)
            state.drop_hold()
            state.ended = True
            self._tell(state)
        return state

    def _tell(self, state: RequestState) -> None:
        """The line of a request, when it has ended and its last job is reported."""
        if state.ended and not state.jobs and self.config.log_requests and state.figures.admitted:
            log.info(state.figures.line(state.request.request_id))

    # ---- steps ---------------------------------------------------------------------------------

    def promises(self) -> KvshmMetadata:
        """What the next step is told, with every load that the engine was promised."""
        meta = KvshmMetadata(self.host.ref, self._new_loads, [], [], dict(self._failures_seen))
        self._new_loads = []
        return meta

    def plan(self, meta: KvshmMetadata, output: Any) -> None:
        """Adds the saves of this step and what must be over before it. May raise; what it has
        added by then stands."""
        try:
            meta.flush = self._flush(output)
        finally:
            self._given = set()
        self._idle = not output.num_scheduled_tokens
        self._flush_disk()
        arena = self.host.ready()
        if arena is not None and self.config.write:
            meta.arena = self.host.ref
            self._saves(arena, output, meta.saves)

    def _saves(self, arena: kvshm.Arena, output: Any, jobs: list[SaveJob]) -> None:
        tables = output.kv_connector_block_state
        if tables is None:
            return
        epoch = self.host.identity.epoch if not self.host.renewed() else -1
        for request_id, scheduled in output.num_scheduled_tokens.items():
            state = self.states.get(request_id)
            # Begun under an older epoch: its KV may be of other weights.
            if state is None or state.epoch != epoch or state.save_failures > MAX_SAVE_FAILURES:
                continue
            state.extend_keys()
            tokens = state.request.num_computed_tokens + scheduled
            try:
                for save in self.planner.plan(arena, state, tokens,
                                              lambda: _table(tables, state, request_id)):
                    self._save(save, jobs)
            except kvshm.NoSpace:
                # Tried again in the next step, while the engine still has the blocks.
                self.stats.add("refused_blocks", self.planner.take_refused())
                return

    def _save(self, save: Save, jobs: list[SaveJob]) -> None:
        piece = piece_of(save)
        if self.events is not None:
            self.events.evicted(save.fill.evicted)
        if piece is None:
            save.fill.abort()
            return
        job = self._job()
        jobs.append(SaveJob(job, save.state.request.request_id, piece))
        save.state.jobs += 1
        self.saving[job] = Saving(save, self.writers, Result(0))

    def _flush(self, output: Any) -> list[int]:
        """Saves that still read blocks which this step gives to others."""
        if not self.saving:
            return []
        given = self._given
        for new in output.scheduled_new_reqs:
            given.update(one for table in new.block_ids for one in table)
        for tables in output.scheduled_cached_reqs.new_block_ids:
            given.update(one for table in tables or () for one in table)
        return [job for job, saving in self.saving.items()
                if not given.isdisjoint(saving.save.rows.tolist())]

    def _flush_disk(self) -> None:
        """Once nothing is computed or copied: what was gathered for the disk may go down."""
        if self._idle and self._gathered and not self.busy() and self.host.arena is not None:
            self._gathered = False
            self.host.arena.tier_flush()

    def reported(self, meta: KvshmWorkerMeta) -> None:
        if any(count > self._failures_seen.get(rank, 0)
               for rank, count in meta.failures.items()):
            self._distrust()
        self._failures_seen.update(meta.failures)
        for job, result in meta.results.items():
            entry: Loading | Saving | None = self.loading.get(job) or self.saving.get(job)
            if entry is None:
                continue  # late, or of a job that was given up
            entry.result = entry.result.add(result)
            entry.left -= result.reports
            if entry.left > 0:
                continue
            if isinstance(entry, Loading):
                del self.loading[job]
                state = entry.state
                self._loaded(entry)
            else:
                del self.saving[job]
                state = entry.save.state
                self._saved(entry)
            state.jobs -= 1
            self._tell(state)
        self._flush_disk()

    def _distrust(self) -> None:
        """A synchronous load failed. Requests may share its blocks by vLLM's own cache, and where
        the recomputation is chunked go on with KV that is not there yet: nothing more is saved of
        any that runs now."""
        for state in self.states.values():
            state.save_failures = MAX_SAVE_FAILURES + 1

    def _loaded(self, entry: Loading) -> None:
        entry.hold.release()
        figures, result = entry.state.figures, entry.result
        figures.load_seconds += result.seconds
        figures.load_bytes += result.nbytes
        failed = entry.blocks - min(entry.blocks, result.failed_at)
        # From the first failed block on the engine computes; or all of it.
        lost = entry.tokens if self.by_request else failed * self.groups[0].block_tokens
        tokens = entry.tokens - (lost if failed else 0)
        first = entry.hold.local
        disk_tokens = entry.state.tokens_from_disk(first, first + tokens)
        figures.disk += disk_tokens
        figures.memory += tokens - disk_tokens
        figures.failed_blocks += failed
        for field, amount in (
                ("memory_tokens", tokens - disk_tokens), ("disk_tokens", disk_tokens),
                ("loaded_blocks", entry.blocks - failed),
                ("failed_blocks", failed),
                ("load_bytes", result.nbytes), ("load_seconds", result.seconds)):
            self.stats.add(field, amount)
        if failed:
            entry.state.refused = True
            log.warning("kvshm: %s: %d of %d blocks were not loaded; the engine computes them",
                        entry.state.request.request_id, failed, entry.blocks)

    def _saved(self, entry: Saving) -> None:
        save, state, result = entry.save, entry.save.state, entry.result
        save.fill.abort()  # as a member that has nothing more to write; what is READY stays
        good = min(result.failed_at, len(save.rows))
        self._gathered |= good > 0 and self.host.disk
        state.figures.saved_blocks += good
        for field, amount in (("saved_blocks", good), ("save_bytes", result.nbytes),
                              ("save_seconds", result.seconds)):
            self.stats.add(field, amount)
        if self.events is not None and good:
            self.events.stored(save, self.groups[save.group], save.blocks[:good].tolist())
        if result.failed_at != NOWHERE:
            self.stats.add("failed_saves")
            state.save_failures += 1
            state.saved[save.group] = min(state.saved[save.group], save.first)

    # ---- the rest ------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Whether reports are awaited: the engine must go on stepping for them."""
        return bool(self.saving or self.loading)

    def take_stats(self) -> KvshmStats | None:
        """Since the last call; None if nothing happened."""
        if self.stats.is_empty():
            return None
        stats, self.stats = self.stats, KvshmStats()
        return stats

    def lost(self, error: BaseException) -> None:
        log.warning("kvshm: %s; going on without it", error)
        for state in self.states.values():
            state.drop_hold()
        self.ahead = None
        self.host.lost()

    def reset(self) -> bool:
        done = self.host.reset()
        for state in self.states.values():
            state.drop_hold()
        return done

    def close(self) -> None:
        for request_id in list(self.states):
            self.finish(request_id)
        for loading in self.loading.values():
            loading.hold.release()
        for saving in self.saving.values():
            saving.save.fill.abort()
        self.loading, self.saving = {}, {}
        self.lookups.close()
        self.host.close()

    def _job(self) -> int:
        self._next_job += 1
        return self._next_job


def _table(tables: Any, state: RequestState, request_id: str) -> Any:
    """The request's block ids by group, or None. Before 0.32 a step tells them only of requests
    that it gave blocks to: then what the last one told still holds, for groups that keep theirs."""
    if hasattr(tables, "get_block_ids"):
        return tables.get_block_ids(request_id)
    found = tables.block_ids.get(request_id)
    if found is not None:
        state.table = found
    return state.table
