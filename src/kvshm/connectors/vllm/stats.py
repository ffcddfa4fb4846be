# SPDX-License-Identifier: Apache-2.0
"""The connector's figures in vLLM's own statistics and Prometheus registry.

One list gives them all. They are counted by the scheduler's side alone, after the fact, so nothing
is counted twice over ranks.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

FIELDS = {
    "lookups": "requests looked up, a repeated try counts again",
    "lookup_seconds": "seconds spent in look-ups",
    "asked_tokens": "tokens of admitted requests",
    "local_tokens": "of these, found in the engine's own cache",
    "memory_tokens": "of these, loaded from the shared arena",
    "disk_tokens": "of these, loaded from the disk by way of the arena",
    "disk_blocks": "blocks brought from the disk into the arena",
    "failed_disk_blocks": "blocks that the disk was to bring and did not",
    "late_disk_loads": "requests that went on without what the disk had not brought in time",
    "disk_seconds": "seconds for which requests waited for the disk",
    "loaded_blocks": "blocks loaded",
    "failed_blocks": "blocks that could not be loaded and were computed",
    "load_bytes": "bytes copied from the arena to the engine, all ranks",
    "load_seconds": "seconds of these copies, the slowest rank of each",
    "saved_blocks": "blocks stored",
    "failed_saves": "stores that failed",
    "save_bytes": "bytes copied from the engine to the arena, all ranks",
    "save_seconds": "seconds of these copies, the slowest rank of each",
    "refused_blocks": "blocks not stored for want of space",
}


class KvshmStats(KVConnectorStats):
    """Sums since the last reset; crosses processes as a dict."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data={**dict.fromkeys(FIELDS, 0), **(data or {})})

    def add(self, field: str, amount: float = 1) -> None:
        self.data[field] += amount

    def reset(self) -> None:
        self.data: dict[str, Any] = dict.fromkeys(FIELDS, 0)

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for field, amount in other.data.items():
            self.data[field] = self.data.get(field, 0) + amount
        return self

    def is_empty(self) -> bool:
        return not any(self.data.values())

    def reduce(self) -> dict[str, int | float]:
        """For the line "KV Transfer metrics: ..."."""
        data = self.data
        line: dict[str, int | float] = {
            "asked tokens": data["asked_tokens"], "local": data["local_tokens"],
            "memory": data["memory_tokens"], "disk": data["disk_tokens"],
            "blocks saved": data["saved_blocks"]}
        for name in ("load", "save"):
            if data[f"{name}_seconds"]:
                rate = data[f"{name}_bytes"] / data[f"{name}_seconds"] / 1e9
                line[f"{name} GB/s"] = round(rate, 2)
        for field in ("failed_blocks", "failed_disk_blocks", "late_disk_loads", "failed_saves",
                      "refused_blocks"):
            if data[field]:
                line[field.replace("_", " ")] = data[field]
        return line


class KvshmPromMetrics(KVConnectorPromMetrics):
    """vllm:kvshm_<field>_total, one counter a field and engine."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str],
                 per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter: type[Counter] = self._counter_cls
        self._counters = {}
        for field, text in FIELDS.items():
            metric = counter(name=f"vllm:kvshm_{field}", documentation=f"kvshm: {text}",
                             labelnames=labelnames)
            self._counters[field] = {engine: metric.labels(*values)
                                     for engine, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for field, amount in transfer_stats_data.items():
            if amount and field in self._counters:
                self._counters[field][engine_idx].inc(amount)
