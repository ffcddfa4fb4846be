# SPDX-License-Identifier: Apache-2.0
"""LMCache as an engine has it in its own process: its engine object, on host memory."""

from __future__ import annotations

import sys
from typing import Any

import driver
import lmcache
import torch
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata

ID = "bench"
WIDTH = 8  # numbers a token: the blocks' size does not matter to a look-up


def main() -> None:
    out = driver.protect_stdout()
    block = int(sys.argv[1])
    asked = {shape.tokens: driver.requests(shape, block) for shape in driver.shapes(sys.argv[2])}
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=block, local_cpu=True, max_local_cpu_size=1.0, save_unfull_chunk=False)
    about = LMCacheMetadata(
        model_name="bench", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
        kv_dtype=torch.bfloat16, kv_shape=(1, 2, block, 1, WIDTH))
    engine = LMCacheEngineBuilder.get_or_create(
        ID, config, about, None, lambda tensor, source: None, lambda thing, source: thing)
    try:
        engine.post_init()
        stores = engine.storage_manager
        for one in (one for some in asked.values() for one in some):
            for keys in (from_tokens(engine, one), from_hashes(engine, one, block)):
                blocks = stores.batched_allocate(
                    torch.Size([2, 1, block, WIDTH]), torch.bfloat16, len(keys))
                stores.batched_put(keys, blocks)

        def look_keys(keys: list[Any]) -> tuple[int, Any]:
            found, where = stores.batched_contains(keys, None, True)
            return found, where

        def release_keys(where: dict[str, list[Any]]) -> None:
            for location, keys in where.items():
                stores.batched_unpin(keys, [location])

        def look_hashes(hashes: list[bytes]) -> tuple[int, Any]:
            found = engine.lookup(hashes=numbers(hashes), offsets=[block] * len(hashes),
                                  lookup_id=ID, pin=True)
            return found // block, ID

        def look_tokens(tokens: list[int]) -> tuple[int, Any]:
            return engine.lookup(tokens, lookup_id=ID, pin=True) // block, ID

        sources: dict[str, driver.Source] = {
            "keys": (lambda one: from_tokens(engine, one), look_keys, release_keys),
            "hashes": (lambda one: one.hashes, look_hashes, engine.lookup_unpin),
            "tokens": (lambda one: one.tokens, look_tokens, engine.lookup_unpin),
        }
        driver.serve(out, {"version": lmcache.__version__}, asked, sources)
    finally:
        LMCacheEngineBuilder.destroy(ID)


def from_tokens(engine: Any, one: driver.Request) -> list[Any]:
    return [key for _, _, key in engine.token_database.process_tokens(tokens=one.tokens)]


def from_hashes(engine: Any, one: driver.Request, block: int) -> list[Any]:
    made = engine.token_database.process_tokens(
        hashes=numbers(one.hashes), offsets=[block] * one.blocks)
    return [key for _, _, key in made]


def numbers(hashes: list[bytes]) -> list[int]:
    """It takes hashes as integers; its own conversion keeps 64 bits, too."""
    return [int.from_bytes(one[:8], "big") for one in hashes]


if __name__ == "__main__":
    main()
