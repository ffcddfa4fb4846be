# SPDX-License-Identifier: Apache-2.0
"""KvshmOffloadingSpec: what vLLM's OffloadingConnector is given to offload to an arena."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig

import kvshm
from kvshm.paged import Pages, runs_of

from ..groups import Group, groups_of, replicated, writers_of
from ..host import Host
from ..identity import identity_of
from ..layout import layout_text, slice_bytes
from . import check
from .manager import KvshmOffloadingManager
from .worker import KvshmOffloadingWorker

# The connector's own keys of kv_connector_extra_config. All others are options of kvshm.
OF_THE_CONNECTOR = frozenset({
    "spec_name", "spec_module_path", "block_size", "blocks_per_chunk", "offload_prompt_only",
    "self_describing_kv_events", "canonical_layout",
})


@dataclass(frozen=True)
class Engine:
    vllm_config: Any
    kv_cache_config: Any
    scheduler: bool  # the scheduler's side, or a worker's


class KvshmOffloadingSpec(OffloadingSpec):
    """Made once in the scheduler's process and once in each worker. Opens the arena at once, so
    that what is wrong is said when the engine starts. Unsupported, with the remedy, for what could
    not be kept apart or copied."""

    def __init__(self, config: OffloadingConfig) -> None:
        check()
        engine = engine_that_calls()
        super().__init__(config)
        self._settings = settings_of(config.extra_config)
        _refuse(config, engine.vllm_config, self._settings)
        self._hash_algorithm = engine.vllm_config.cache_config.prefix_caching_hash_algo
        self._groups = groups_of(engine.kv_cache_config, config.cache.tokens_per_hash)
        if [group.index for group in self._groups] != [one.group_id for one in config.groups]:
            raise kvshm.Unsupported(
                f"vLLM offloads the KV cache groups {[one.group_id for one in config.groups]}, "
                f"kvshm can {[group.index for group in self._groups]}: use KvshmConnector")
        once = replicated(self._groups)
        self.replicated_layout = once  # vLLM lets rank 0 alone store then
        self._writers = writers_of(self._groups, config.parallel.world_size)
        self._part = 0 if once else config.parallel.rank
        # A packed layout has all layers of a block in one piece.
        packed = -(-config.worker_kv_bytes_per_block // 64) * 64
        self._slice = max(slice_bytes(self._groups), packed)
        # KvshmConnector lays its blocks out otherwise: neither finds those of the other.
        text = layout_text(engine.vllm_config, engine.kv_cache_config, self._groups)
        identity = identity_of(engine.vllm_config, engine.kv_cache_config, f"offloading {text}",
                               self._settings)
        side = "scheduler" if engine.scheduler else f"worker {config.parallel.rank}"
        label = config.engine_id if self._settings.label == "-" else self._settings.label
        self._host = Host(self._settings, identity, self._writers * self._slice,
                          label or f"vllm offloading {side}")

    def get_manager(self) -> OffloadingManager:
        return KvshmOffloadingManager(self._settings, self._host, self._groups, self._writers,
                                      self._hash_algorithm,
                                      self.kv_events_config.enable_kv_cache_events)

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        pages = {at: self._pages(group, kv_caches, kv_caches.group_data_refs[at])
                 for at, group in enumerate(self._groups)}
        return KvshmOffloadingWorker(self._settings, self._host, pages, self._part)

    def _pages(self, group: Group, kv_caches: CanonicalKVCaches, refs: Any) -> Pages:
        tensors = {}
        for number, ref in enumerate(refs):
            whole = kv_caches.tensors[ref.tensor_idx].tensor
            tensors[f"{number} of group {group.index}"] = whole[:, :ref.page_size_bytes]
        pages = runs_of(tensors, next(iter(tensors.values())).shape[0])
        if pages.slice_bytes > self._slice:
            raise kvshm.InvalidArgument(
                f"KV cache group {group.index} has {pages.slice_bytes} bytes a block, the "
                f"configuration says {self._slice}")
        return pages


def settings_of(extra: Mapping[str, Any]) -> kvshm.Config:
    """kvshm's options out of kv_connector_extra_config, over the environment."""
    return kvshm.Config.resolve(
        {name: value for name, value in extra.items() if name not in OF_THE_CONNECTOR})


def engine_that_calls() -> Engine:
    """The configuration of the engine whose OffloadingConnector is being made. A spec is told a
    small part of it, which does not tell engines with other weights, overrides or hashes apart; the
    rest is with our caller. That, too, is why one version of vLLM is taken."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is OffloadingConnector.__init__.__code__:
            given = frame.f_locals
            return Engine(given["vllm_config"], given["kv_cache_config"],
                          given["role"] == KVConnectorRole.SCHEDULER)
        frame = frame.f_back
    raise kvshm.Unsupported("a KvshmOffloadingSpec is made by vLLM's OffloadingConnector, whose "
                            "configuration it needs; this is another caller")


def _refuse(config: OffloadingConfig, vllm_config: Any, settings: kvshm.Config) -> None:
    if config.cache.blocks_per_chunk != 1:
        raise kvshm.Unsupported(
            f"{config.cache.blocks_per_chunk} blocks a chunk: a block of the arena holds one of "
            "the engine's; leave block_size and blocks_per_chunk out of kv_connector_extra_config")
    if config.canonical_layout:
        raise kvshm.Unsupported("canonical_layout: blocks are kept as the engine's tensors have "
                                "them; leave it out of kv_connector_extra_config")
    if getattr(vllm_config, "lora_config", None) is not None:
        raise kvshm.Unsupported("LoRA: vLLM's offloading interface does not say which adapter a "
                                "request uses; KvshmConnector keeps adapters apart")
    if settings.tier:
        raise kvshm.Unsupported("tier: what is on disk alone, vLLM's OffloadingConnector does not "
                                "find; use KvshmConnector")
    if settings.load == "sync":
        raise kvshm.Unsupported("load='sync': vLLM's OffloadingConnector loads beside the steps")
