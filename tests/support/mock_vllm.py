# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the modules of vLLM that the connector imports, with the interface of its newest
supported version (0.33) or its oldest (0.29). What it does not have, the connector does not use."""
from __future__ import annotations

import enum
import hashlib
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace as NS
from typing import Any

import pytest
from kvshm.connectors.vllm.identity import none_hash_seed

V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
CONNECTOR = "kvshm.connectors.vllm"
# Modules of the connector that do not import vLLM, and keep what they have seen.
KEPT = {f"{CONNECTOR}{name}" for name in (
    ".adapters", ".groups", ".identity", ".keys", ".layout", ".lookup", ".sampling", ".version",
    ".weights")}


class KVConnectorRole(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata(ABC):  # noqa: B024
    pass


class KVConnectorHandshakeMetadata(ABC):  # noqa: B024
    pass


class KVConnectorWorkerMetadata(ABC):
    @abstractmethod
    def aggregate(self, other: Any) -> Any: ...


@dataclass
class KVConnectorTransferResults:
    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


class SupportsHMA(ABC):
    @abstractmethod
    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any: ...


class OldestBase(ABC):
    """KVConnectorBase_V1 of 0.29."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._connector_metadata: Any = None
        self._vllm_config, self._role = vllm_config, role
        self._kv_cache_config = kv_cache_config

    @property
    def role(self) -> Any:
        return self._role

    @property
    def requires_kv_delivery(self) -> bool:
        return True

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        self._connector_metadata = None

    def register_kv_caches(self, kv_caches: Any) -> None: ...

    def handle_preemptions(self, kv_connector_metadata: Any) -> None: ...

    @abstractmethod
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    @abstractmethod
    def wait_for_layer_load(self, layer_name: str) -> None: ...

    @abstractmethod
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any,
                      **kwargs: Any) -> None: ...

    @abstractmethod
    def wait_for_save(self) -> None: ...

    def get_finished(self, finished_req_ids: set[str]) -> tuple[Any, Any]:
        return None, None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set()

    def shutdown(self) -> None: ...

    def get_kv_connector_stats(self) -> Any: ...

    def get_kv_connector_kv_cache_events(self) -> Any: ...

    def get_handshake_metadata(self) -> Any: ...

    def build_connector_worker_meta(self) -> Any: ...

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Any: ...

    @abstractmethod
    def update_state_after_alloc(self, request: Any, blocks: Any,
                                 num_external_tokens: int) -> Any: ...

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) -> Any: ...

    def on_new_request(self, request: Any) -> None: ...

    def update_connector_output(self, connector_output: Any) -> None: ...

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, Any]:
        return False, None

    def take_events(self) -> Any:
        return ()

    def has_pending_push_work(self) -> bool:
        return False

    def get_finished_count(self) -> Any: ...

    def reset_cache(self) -> Any: ...


class NewestBase(OldestBase):
    """KVConnectorBase_V1 of 0.32 and 0.33."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        sending, recving = self.get_finished(finished_req_ids)
        return KVConnectorTransferResults(set(sending or ()), set(recving or ()))

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None: ...

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        return ()

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> Any:
        return {self._cache_hit_source: num_external_tokens}

    def has_pending_block_frees(self) -> bool:
        return False


@dataclass
class KVConnectorStats:
    data: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return self.data


class KVConnectorPromMetrics:
    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: Any,
                 per_engine_labelvalues: Any) -> None:
        from prometheus_client import Counter

        self._counter_cls = metric_types.get(Counter, Counter)


class CacheHitSource(enum.Enum):
    HOST = "host"


def _hash(value: Any) -> bytes:
    return hashlib.sha256(repr(value).encode()).digest()


def _modules(version: str, oldest: bool) -> dict[str, dict[str, Any]]:
    common = {"KVConnectorRole": KVConnectorRole, "KVConnectorMetadata": KVConnectorMetadata,
              "KVConnectorWorkerMetadata": KVConnectorWorkerMetadata, "SupportsHMA": SupportsHMA,
              "KVConnectorHandshakeMetadata": KVConnectorHandshakeMetadata}
    new = {"KVConnectorTransferResults": KVConnectorTransferResults}
    base = OldestBase if oldest else NewestBase
    modules = {
        "vllm": {"__version__": version},
        f"{V1}.base": {"KVConnectorBase_V1": base, **common, **({} if oldest else new)},
        "vllm.distributed.kv_transfer.kv_connector.factory": {
            "KVConnectorFactory": NS(register_connector=lambda name, module, its_class: None)},
        f"{V1}.metrics": {"KVConnectorStats": KVConnectorStats,
                          "KVConnectorPromMetrics": KVConnectorPromMetrics},
        "vllm.distributed.kv_events": {
            "KVCacheEvent": NS, "BlockStored": lambda **f: NS(kind="stored", **f),
            "BlockRemoved": lambda **f: NS(kind="removed", **f)},
        "vllm.utils.hashing": {"get_hash_fn_by_name": lambda name: _hash},
        "vllm.v1.core.kv_cache_utils": {
            "maybe_convert_block_hash": lambda one: one,
            "NONE_HASH": _hash(none_hash_seed("sha256"))},
    }
    if not oldest:
        modules["vllm.v1.metrics.cache_hit_source"] = {"CacheHitSource": CacheHitSource}
    return modules


@contextmanager
def installed(version: str = "0.33.0", oldest: bool = False) -> Iterator[types.ModuleType]:
    """Within it, a vLLM of that version seems to be installed; gives the connector's module,
    imported against it. Before and after, whatever there was."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(sys.modules):
            if name.partition(".")[0] == "vllm" or (
                    name.startswith(f"{CONNECTOR}.") and name not in KEPT):
                patch.delitem(sys.modules, name)
        for name, content in _modules(version, oldest).items():
            steps = name.split(".")
            for i in range(1, len(steps) + 1):
                part = ".".join(steps[:i])
                if part not in sys.modules:
                    module = types.ModuleType(part)
                    module.__dict__["__path__"] = []
                    patch.setitem(sys.modules, part, module)
            sys.modules[name].__dict__.update(content)
        from kvshm.connectors.vllm import version as found

        patch.setattr(found, "installed", lambda: version)
        package = sys.modules[CONNECTOR]
        before = dict(package.__dict__)
        package.__dict__.pop("KvshmConnector", None)
        from importlib import import_module

        try:
            yield import_module(f"{CONNECTOR}.connector")
        finally:
            for name in [n for n in sys.modules
                         if n.startswith(f"{CONNECTOR}.") and n not in KEPT]:
                del sys.modules[name]
            package.__dict__.clear()
            package.__dict__.update(before)
