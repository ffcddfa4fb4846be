# SPDX-License-Identifier: Apache-2.0
"""LMCache's server for several engines, over its own socket protocol. It takes token ids and
nothing else. A look-up is two calls, as from an engine: submit, then wait for what was found; that
leaves the blocks locked for the reader."""

from __future__ import annotations

import itertools
import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import driver
import lmcache
import torch
from lmcache.v1.multiprocess.custom_types import (
    IPCCacheServerKey,
    RegisterEngineDrivenContextPayload,
)
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

MODEL = "bench"
WIDTH = 8  # numbers a token: the blocks' size does not matter to a look-up
START_SECONDS = 120.0
CALL_SECONDS = 60.0
STORED_AT_ONCE = 4096  # tokens


class Client:
    def __init__(self, port: int, block: int) -> None:
        self.calls = RequestClientFactory.create(f"tcp://127.0.0.1:{port}")
        self._block = block
        self._id = os.getpid()
        self._names = (f"request-{i}" for i in itertools.count())
        if hasattr(self.calls, "start"):
            self.calls.start()

    def key(self, tokens: list[int], start: int, end: int) -> IPCCacheServerKey:
        return IPCCacheServerKey(
            model_name=MODEL, world_size=1, worker_id=0, token_ids=tuple(tokens), start=start,
            end=end, request_id=next(self._names), num_kv_readers=1)

    def register(self) -> None:
        self.calls.register_kv_cache_engine_driven_context(RegisterEngineDrivenContextPayload(
            instance_id=self._id, model_name=MODEL, world_size=1, block_size=self._block,
            num_layers=1, hidden_dim_size=WIDTH, dtype_str="bfloat16", use_mla=False,
        )).result(timeout=CALL_SECONDS)

    def store(self, tokens: list[int]) -> None:
        whole = len(tokens) - len(tokens) % self._block
        for start in range(0, whole, STORED_AT_ONCE):
            end = min(start + STORED_AT_ONCE, whole)
            key = self.key(tokens[:end], start, end)
            self.calls.prepare_store(key, self._id).result(timeout=CALL_SECONDS)
            chunks = [torch.zeros(2, 1, self._block, WIDTH, dtype=torch.bfloat16)
                      for _ in range((end - start) // self._block)]
            if not self.calls.commit_store(key, self._id, pickle.dumps(chunks)).result(
                    timeout=CALL_SECONDS):
                driver.fail(f"the server did not store tokens {start} to {end}")
            self.calls.end_session(key.request_id).result(timeout=CALL_SECONDS)

    def look(self, tokens: list[int]) -> tuple[int, IPCCacheServerKey]:
        whole = len(tokens) - len(tokens) % self._block
        key = replace(self.key(tokens, 0, whole), worker_id=None)
        self.calls.lookup(key, 1).result(timeout=CALL_SECONDS)
        found = self.calls.wait_prefetch_status(key.request_id, CALL_SECONDS).result(
            timeout=CALL_SECONDS)
        return found or 0, key

    def release(self, key: IPCCacheServerKey) -> None:
        self.calls.free_lookup_locks(key, 1).result(timeout=CALL_SECONDS)
        self.calls.end_session(key.request_id).result(timeout=CALL_SECONDS)


def main() -> None:
    out = driver.protect_stdout()
    block = int(sys.argv[1])
    asked = {shape.tokens: driver.requests(shape, block) for shape in driver.shapes(sys.argv[2])}
    port, http, prometheus = driver.free_ports(3)
    server = driver.start(
        [str(Path(sys.executable).with_name("lmcache")), "server", "--host", "127.0.0.1",
         "--port", str(port), "--http-host", "127.0.0.1", "--http-port", str(http),
         "--prometheus-port", str(prometheus), "--chunk-size", str(block), "--l1-size-gb", "1",
         "--eviction-policy", "LRU", "--supported-transfer-mode", "engine_driven"])
    try:
        driver.wait_for(port, server, START_SECONDS)
        client = Client(port, block)
        client.register()
        for one in (one for some in asked.values() for one in some):
            client.store(one.tokens)
        sources: dict[str, driver.Source] = {
            "tokens": (lambda one: one.tokens, client.look, client.release),
        }
        driver.serve(out, {"version": lmcache.__version__}, asked, sources)
    finally:
        driver.end(server)


if __name__ == "__main__":
    main()
