# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: what is there, held from the look-up on, and room for what is not.

A block that vLLM was told of must be loaded: its interface has no way to say that one is gone. So a
look-up holds what it finds, until all workers have copied it or the request goes on without.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    LoadStoreSpec,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

import kvshm
from kvshm.convert import HANDLE_DTYPE

from ..groups import Group
from ..guard import guarded
from ..host import Host
from ..identity import confirm_seed
from .records import ArenaBlocks
from .requests import Asked
from .stores import Stores

log = logging.getLogger("vllm.kvshm")


class KvshmOffloadingManager(OffloadingManager):
    """Threads: the scheduler's only."""

    def __init__(self, config: kvshm.Config, host: Host, groups: Sequence[Group], writers: int,
                 hash_algorithm: str, events: bool) -> None:
        """writers: ranks that write a slice of each block."""
        self.config, self.host = config, host
        self._hash_algorithm, self._confirmed = hash_algorithm, False
        self.stores = Stores(config, writers, events)
        self._whole = {group.index for group in groups if not group.partial}
        self._asked: dict[str, Asked] = {}
        # Of blocks that a reset took from their requests while workers may still come for them.
        self._retired: list[tuple[float, list[kvshm.Lease]]] = []
        self._told: set[str] = set()
        log.info("kvshm: offloading to %s", host.describe())

    def trouble(self, where: str, error: Exception) -> None:
        if isinstance(error, kvshm.ArenaReplaced):
            log.warning("kvshm: %s; going on without it", error)
            for asked in self._asked.values():
                asked.drop()
                asked.loaded()
            self.host.lost()
            return
        known = f"{where}: {type(error).__name__}"
        if known not in self._told:  # each kind once with its trace
            self._told.add(known)
            log.exception("kvshm: %s; the engine goes on without it", where)

    # ---- requests ------------------------------------------------------------------------------

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        if not self._confirmed:  # vLLM draws its seed later than this object is made
            self._confirmed = True
            self._confirm()
        old = self._asked.pop(req_context.req_id, None)
        if old is not None:
            self._retire(old)
        self._asked[req_context.req_id] = Asked(req_context, self.host.identity)
        return RequestOffloadingContext()

    def _confirm(self) -> None:
        """That vLLM's hashes begin as the identity says."""
        try:
            confirm_seed(self._hash_algorithm)
        except kvshm.Unsupported as error:
            log.error("kvshm: %s; nothing is loaded or stored", error)
            self.host.turn_off()

    def on_request_finished(self, req_context: ReqContext) -> None:
        asked = self._asked.get(req_context.req_id)
        if asked is not None:
            asked.finished = True
            asked.drop()
            self._forget(asked)

    def _forget(self, asked: Asked) -> None:
        """Once it is over and the workers have what they read."""
        if asked.finished and not asked.loading:
            self._asked.pop(asked.context.req_id, None)

    @guarded(lambda *_: None)
    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        for request_id in context.new_req_ids:  # they run: what they hold is not asked for
            asked = self._asked.get(request_id)
            if asked is not None:
                asked.drop()
        while self._retired and self._retired[0][0] < time.monotonic():
            for lease in self._retired.pop(0)[1]:
                lease.release()

    # ---- loads ---------------------------------------------------------------------------------

    @guarded(lambda *_: LookupResult.MISS)
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT: held. Never HIT_PENDING: who computes a block that another process is filling waits
        for nobody."""
        arena = self.host.ready()
        asked = self._asked.get(req_context.req_id)
        if (arena is None or asked is None or not self.config.read
                or not req_context.load_tier_filter.allows(Medium.CPU, Locality.LOCAL)):
            return LookupResult.MISS
        self.host.renewed()
        if asked.identity is not self.host.identity:
            asked.bind(self.host.identity)
        if key in asked.held:
            return LookupResult.HIT
        place = asked.place(key)
        if place is None:
            return LookupResult.MISS
        group, chain, at = place
        # vLLM asks for a prefix from its begin and for a window from its end, up to a miss.
        end = len(chain.keys) if group in self._whole else at + 1
        lease = arena.match(chain.keys[at:end], tag=req_context.req_id[-8:])
        if not lease:
            return LookupResult.MISS
        asked.hold(chain.names[at:at + len(lease)], lease)
        return LookupResult.HIT

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        return CacheHitSource.HOST

    def prepare_load(self, keys: Collection[OffloadKey],
                     req_context: ReqContext) -> LoadStoreSpec:
        asked = self._asked.get(req_context.req_id)
        try:
            if asked is not None:
                return ArenaBlocks(self.host.ref, asked.take(keys))
        except (KeyError, kvshm.Error) as error:
            log.error("kvshm: %s: blocks that were held are gone: %r", req_context.req_id, error)
        return ArenaBlocks(self.host.ref, np.empty(0, HANDLE_DTYPE))

    @guarded(lambda *_: None)
    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        asked = self._asked.get(req_context.req_id)
        if asked is not None:
            asked.loaded()
            self._forget(asked)

    # ---- stores --------------------------------------------------------------------------------

    @guarded(lambda *_: None)
    def prepare_store(self, keys: Collection[OffloadKey],
                      req_context: ReqContext) -> PrepareStoreOutput | None:
        arena, asked = self.host.ready(), self._asked.get(req_context.req_id)
        self.host.renewed()
        if (arena is None or asked is None or not self.config.write
                # Begun under an older epoch: its KV may be of other weights.
                or asked.identity is not self.host.identity):
            return PrepareStoreOutput([], ArenaBlocks(None, np.empty(0, HANDLE_DTYPE)), [])
        asked.drop()  # it runs: what it holds is not asked for
        return self.stores.prepare(arena, self.host.ref, asked, keys)

    @guarded(lambda *_, **__: None)
    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext,
                       success: bool = True) -> None:
        self.stores.complete(self.host.arena, keys)

    def take_events(self) -> Iterable[OffloadingEvent]:
        return self.stores.take_events()

    # ---- the rest ------------------------------------------------------------------------------

    @guarded(lambda *_: None)
    def reset_cache(self) -> None:
        """A new epoch, for all engines of the arena. vLLM forgets its jobs; the workers end
        them."""
        for asked in list(self._asked.values()):
            self._retire(asked)
            self._forget(asked)
        self.stores.leave()
        self.host.reset()
        self.host.renewed()

    def _retire(self, asked: Asked) -> None:
        asked.drop()
        if asked.loading:
            self._retired.append((time.monotonic() + self.config.load_timeout, asked.loading))
            asked.loading = []

    def shutdown(self) -> None:
        for asked in self._asked.values():
            asked.drop()
            asked.loaded()
        self.stores.leave()
        for _, leases in self._retired:
            for lease in leases:
                lease.release()
        self._asked, self._retired = {}, []
        self.host.close()
