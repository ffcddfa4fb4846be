# SPDX-License-Identifier: Apache-2.0
"""XXH3, by the package xxhash."""
from __future__ import annotations

from typing import Any


def load() -> Any:
    """ImportError where the package is not there."""
    import xxhash

    return xxhash


def check64(data: Any, seed: int = 0) -> int:
    return int(load().xxh3_64_intdigest(data, seed))


def check128(data: Any) -> tuple[int, int]:
    """The low and the high half, as a record has them."""
    both = int(load().xxh3_128_intdigest(data))
    return both & (1 << 64) - 1, both >> 64
