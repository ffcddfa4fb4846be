# SPDX-License-Identifier: Apache-2.0
"""Block ids as keys of a raw arena."""
from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .trace import Ids


def keys_of(ids: Ids) -> npt.NDArray[np.uint8]:
    """(n, 16): equal ids have equal keys, different ones different keys; none is all zero."""
    halves = np.empty((len(ids), 2), np.uint64)
    halves[:, 0] = _mix(ids + np.uint64(0x9E3779B97F4A7C15))
    halves[:, 1] = _mix(ids + np.uint64(0x3C6EF372FE94F82A))
    return halves.view(np.uint8)


def _mix(x: Ids) -> Ids:
    """The finaliser of splitmix64, a bijection: a half is 0 for one id, not the same in both."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
