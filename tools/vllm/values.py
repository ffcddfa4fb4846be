# SPDX-License-Identifier: Apache-2.0
"""What the engine counts, as plain numbers."""

from __future__ import annotations

_EVERYWHERE = ("model_name", "engine")  # labels that say nothing in a process with one engine


def prometheus() -> dict[str, float]:
    """Counters, gauges, sums and counts by their names, ``vllm:external_prefix_cache_hits_total``;
    where they have labels, also one for each: ``NAME{source=host}``."""
    from prometheus_client import REGISTRY

    found: dict[str, float] = {}
    for metric in REGISTRY.collect():
        if not metric.name.startswith(("vllm", "kvshm")):
            continue
        for sample in metric.samples:
            if sample.name.endswith(("_bucket", "_created", "_info")):
                continue
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
            labels = [f"{name}={value}" for name, value in sorted(sample.labels.items())
                      if name not in _EVERYWHERE]
            if labels:
                found[f"{sample.name}{{{','.join(labels)}}}"] = sample.value
    return found
