# SPDX-License-Identifier: Apache-2.0
"""What stands beside a policy: exact LRU, ARC, and Belady's choice at the same capacity."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from kvshm.eviction.exact import exact_arc, exact_belady, exact_lru

from .progress import Progress
from .ratios import Ratios, ratios
from .trace import Dense, Trace, Whole

_Reference = Callable[[Dense, Whole, int], npt.NDArray[np.int32]]

REFERENCES: dict[str, tuple[str, _Reference]] = {
    "lru": ("exact LRU", exact_lru),
    "arc": ("ARC", exact_arc),
    "opt": ("Belady", exact_belady),
}


def references(trace: Trace, blocks: int, progress: Progress) -> dict[str, Ratios]:
    found = {}
    for name, (title, function) in REFERENCES.items():
        progress.stage(title, trace.requests)
        found[name] = ratios(trace, function(trace.dense, trace.bounds, blocks))
    return found


def members(found: dict[str, Ratios]) -> dict[str, Any]:
    """As members of a JSON document: lru_reference is the share of the blocks, and so on."""
    flat: dict[str, Any] = {f"{name}_reference": found[name].block if name in found else None
                            for name in REFERENCES}
    return flat | {"references": {name: r._asdict() for name, r in found.items()}}
