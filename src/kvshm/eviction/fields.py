# SPDX-License-Identifier: Apache-2.0
"""What a policy in Python wants to know of all blocks at once, out of an array of BLOCK_DTYPE."""
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def age(table: Any, now: int) -> npt.NDArray[np.uint32]:
    """Releases of blocks, anywhere in the arena, since the last one of this block. Stamps wrap, and
    so does the difference."""
    ages: npt.NDArray[np.uint32] = np.uint32(now) - table["stamp"]
    return ages


def uses(table: Any) -> npt.NDArray[np.uint32]:
    """How often each was used, 0 to 15, as counted at its last use: halved now and then."""
    counts: npt.NDArray[np.uint32] = table["freq_depth"] & 15
    return counts


def depth(table: Any) -> npt.NDArray[np.uint32]:
    """Blocks before this one in its chain: 0 for the first block of a prompt."""
    places: npt.NDArray[np.uint32] = table["freq_depth"] >> 8
    return places
