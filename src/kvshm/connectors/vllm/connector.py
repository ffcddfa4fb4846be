# SPDX-License-Identifier: Apache-2.0
"""KvshmConnector: vLLM's KV connector interface over the two sides.

vLLM makes two objects of it, one in the scheduler's process and one in each worker. An error of
kvshm never leaves a method after the start: it is logged, and costs a miss, a save or a failed
load, which the engine computes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)

import kvshm

from . import version
from .groups import fails_by_request, groups_of
from .guard import guarded, nothing
from .metadata import KvshmMetadata, KvshmWorkerMeta
from .scheduler import SchedulerSide
from .stats import KvshmPromMetrics, KvshmStats
from .worker import WorkerSide

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
except ImportError:  # before 0.32
    KVConnectorTransferResults = None
try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:
    CacheHitSource = None

log = logging.getLogger("vllm.kvshm")


class KvshmConnector(KVConnectorBase_V1, SupportsHMA):
    """Blocks of one engine are found by every other one on the host (docs/vllm.md)."""

    if CacheHitSource is not None:
        _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        version.check()
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        config = kvshm.Config.resolve(transfer.kv_connector_extra_config)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._told: set[str] = set()
        if KVConnectorTransferResults is None:
            _refuse_several_groups(vllm_config, kv_cache_config)
        label = transfer.engine_id if config.label == "-" else config.label
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerSide(vllm_config, kv_cache_config, config, label)
            _announce(config, self._scheduler)
            if getattr(transfer, "kv_load_failure_policy", "") == "fail":
                log.warning("kvshm: kv_load_failure_policy is 'fail': a block that cannot be "
                            "loaded ends its request; 'recompute' computes it instead")
        else:
            rank = vllm_config.parallel_config.rank
            self._worker = WorkerSide(vllm_config, kv_cache_config, config, label, rank)

    def trouble(self, where: str, error: Exception) -> None:
        if isinstance(error, kvshm.ArenaReplaced) and self._scheduler is not None:
            self._scheduler.lost(error)
            return
        known = f"{where}: {type(error).__name__}"
        if known not in self._told:  # each kind once with its trace
            self._told.add(known)
            log.exception("kvshm: %s; the engine goes on without it", where)

    # ---- scheduler -----------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # a cache: what is not saved is computed again

    @guarded(nothing)
    def on_new_request(self, request: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.new_request(request)

    @guarded(lambda *_: (0, False))
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[
            int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any,
                                 num_external_tokens: int) -> None:
        assert self._scheduler is not None
        try:
            self._scheduler.allocated(request, blocks, num_external_tokens)
        except Exception as error:
            self.trouble("update_state_after_alloc", error)
            if num_external_tokens:
                self._scheduler.promise_failed(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._scheduler is not None
        meta = self._scheduler.promises()
        try:
            self._scheduler.plan(meta, scheduler_output)
        except Exception as error:
            self.trouble("build_connector_meta", error)
        return meta

    @guarded(nothing)
    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, KvshmWorkerMeta):
            self._scheduler.reported(meta)

    @guarded(lambda *_: (False, None))
    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[
            bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        self._scheduler.finish(request.request_id)
        return False, None

    def request_finished(self, request: Any, block_ids: Any) -> tuple[
            bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.busy()

    @guarded(lambda *_: False)
    def reset_cache(self) -> bool | None:
        return self._scheduler.reset() if self._scheduler is not None else None

    @guarded(lambda *_: ())
    def take_events(self) -> Iterable[Any]:
        if self._scheduler is None or self._scheduler.events is None:
            return ()
        return self._scheduler.events.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvshmStats:
        return KvshmStats(data)

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> KvshmPromMetrics:
        return KvshmPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Block by block: then a block is one piece. A CPU knows only its own layout."""
        if str(getattr(vllm_config.device_config, "device_type", "")) == "cpu":
            return None
        return "BLHNC"

    # ---- workers -------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        assert self._worker is not None
        self._worker.register(kv_caches)

    def unregister_kv_caches(self) -> None:
        if self._worker is not None:
            self._worker.unregister()

    def restore_kv_caches(self) -> None:
        if self._worker is not None:
            self._worker.restore()

    @guarded(nothing)
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        if self._worker is not None and isinstance(kv_connector_metadata, KvshmMetadata):
            self._worker.begin(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        meta = self._connector_metadata
        if self._worker is not None and isinstance(meta, KvshmMetadata):
            self._worker.load(meta)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a load is of whole blocks."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any,
                      **kwargs: Any) -> None:
        """Nothing: a save is of whole blocks."""

    def wait_for_save(self) -> None:
        meta = self._connector_metadata
        if self._worker is not None and isinstance(meta, KvshmMetadata):
            self._worker.save(meta)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        assert self._worker is not None
        received, _ = self._worker.received()
        return None, received or None

    if KVConnectorTransferResults is not None:
        def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
            assert self._worker is not None
            received, failed = self._worker.received()
            return KVConnectorTransferResults(finished_recving=received, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.bad_rows() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> KvshmWorkerMeta | None:
        return self._worker.report() if self._worker is not None else None

    # ---- both ----------------------------------------------------------------------------------

    @guarded(nothing)
    def get_kv_connector_stats(self) -> KvshmStats | None:
        return self._scheduler.take_stats() if self._scheduler is not None else None

    @guarded(nothing)
    def shutdown(self) -> None:
        if self._scheduler is not None:
            self._scheduler.close()
        if self._worker is not None:
            self._worker.close()


# MultiConnector knows the class of statistics that come from another process by this name alone.
with contextlib.suppress(ValueError):  # it has the name
    KVConnectorFactory.register_connector("KvshmConnector", __package__, "KvshmConnector")


def _refuse_several_groups(vllm_config: Any, kv_cache_config: Any) -> None:
    """Before 0.32 vLLM can only be told of blocks that were not loaded, which have no names of
    their own in several groups: a failure would pass for KV. And it tells block tables so late
    that a block which has left a window could be saved when it is another request's."""
    groups = groups_of(kv_cache_config, vllm_config.cache_config.block_size)
    if fails_by_request(kv_cache_config, groups):
        raise kvshm.Unsupported(
            "a model with several KV cache groups, or with a sliding window, needs vLLM 0.32 or "
            "later: update vLLM, or run it without the connector")


def _announce(config: kvshm.Config, side: SchedulerSide) -> None:
    """One line of what is in force and where it came from; what was overridden, as a warning."""
    told = ", ".join(f"{name}={value} ({source})" for name, value, source in config.describe()
                     if source != "default")
    log.info("kvshm: %s; options: %s", side.host.describe(), told or "all at their defaults")
    for one in config.overridden:
        log.warning("kvshm: option %s: the environment says %s, kv_connector_extra_config %s, "
                    "which is used", one.name, one.environment, one.used)
