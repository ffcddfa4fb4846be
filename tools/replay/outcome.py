# SPDX-License-Identifier: Apache-2.0
"""What a replay through an arena found."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .ratios import Ratios, ratios
from .trace import Trace

# Counters of the arena whose growth is shown, beside those whose name says that they are of walks.
SHOWN = ("allocated_total", "evicted_total", "evict_steps_total", "alloc_refused_total",
         "duplicates_total", "rejected_total", "reaped_slots_total")


@dataclass(frozen=True, eq=False)
class Outcome:
    """hits: leading cached blocks of each request. counted: growth of the arena's counters.
    refused: blocks not stored for want of room. broken: invariants broken at the end, in words."""

    policy: str
    blocks: int
    processes: int
    hits: npt.NDArray[np.int32]
    counted: dict[str, int]
    refused: int
    seconds: float
    kills: int = 0
    broken: tuple[str, ...] = ()

    def ratios(self, trace: Trace) -> Ratios:
        return ratios(trace, self.hits)

    def document(self, trace: Trace) -> dict[str, Any]:
        """The members of the JSON document that are of the arena."""
        found, evicted = self.ratios(trace), self.counted.get("evicted_total", 0)
        looks = self.counted.get("evict_looks_total")  # where the library counts them
        return dict(
            policy=self.policy, blocks=self.blocks, processes=self.processes, kills=self.kills,
            block_hit_ratio=found.block, token_hit_ratio=found.token,
            compute_hit_ratio=found.compute, hits=int(self.hits.sum()),
            refused_blocks=self.refused,
            walk_steps_per_eviction=_per(self.counted.get("evict_steps_total"), evicted),
            headers_per_eviction=_per(looks, evicted),
            seconds=round(self.seconds, 3),
            counters={name: self.counted[name] for name in SHOWN if name in self.counted},
            broken=list(self.broken))


def _per(count: int | None, evicted: int) -> float | None:
    return round(count / evicted, 3) if count is not None and evicted else None


def growth(before: Any, after: Any) -> dict[str, int]:
    """What the counters (not the gauges) of Arena.stats() grew by."""
    return {name: after[name] - before[name] for name in after if name.endswith("_total")}
