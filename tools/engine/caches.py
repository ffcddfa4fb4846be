# SPDX-License-Identifier: Apache-2.0
"""The cache that a worker's settings ask for."""

from __future__ import annotations

from .kv import KVCache, OffCache
from .settings import OFF, Settings


def make_cache(settings: Settings, chunk_ms: float) -> KVCache:
    if settings.kv == OFF:
        return OffCache(settings.model, settings.block_tokens)
    # Only here: without reuse the engine runs where kvshm cannot be imported.
    from .kv_arena import open_cache

    return open_cache(settings, chunk_ms)
