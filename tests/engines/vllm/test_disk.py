# SPDX-License-Identifier: Apache-2.0
"""Real engines whose arena is smaller than what they are asked, with the rest on disk; and the disk
after all of them, and all shared memory, have gone."""
from __future__ import annotations

import os
import random
import re
from pathlib import Path

import kvshm
import pytest
from kvshm.tools.vllm.client import Request, close_all
from kvshm.tools.vllm.options import kvshm_connector
from support import shm_dir
from support.arenas import eventually

PROMPTS, TOKENS, LOADED = 8, 1000, 992


def prompt(seed: int) -> list[int]:
    some = random.Random(seed)
    return [some.randrange(2048) for _ in range(TOKENS)]


def one(engine, request):
    (answer,) = engine.generate([request])
    return answer


def tokens_by_place(engine):
    """Sums over the lines that the connector logs, one a request."""
    found = re.findall(r"kvshm: \S+ \d+ tokens asked, (\d+) local, (\d+) memory, (\d+) disk",
                       engine.log())
    return [sum(int(row[place]) for row in found) for place in range(3)]


def forget(name: str) -> None:
    """As a reboot does it: all that was in memory has gone."""
    for path in Path(shm_dir).glob(f"kvshm.{name}*"):
        path.unlink()


@pytest.mark.timeout(900)
def test_more_than_fits_in_memory_and_a_restart(new_engine, tmp_path):
    name = f"test-vllm-disk-{os.getpid()}"
    told = {"name": name, "size": "10MiB", "tier": str(tmp_path / "tier"), "tier_size": "64MiB"}

    def start(label: str, load: str):
        # Blocks of its own for hardly more than two prompts.
        return new_engine(label=label, wait=False, max_model_len=2048, num_gpu_blocks=72,
                          max_num_batched_tokens=256,
                          connector=kvshm_connector({**told, "load": load}))

    requests = [Request(prompt(seed), 16) for seed in range(PROMPTS)]
    try:
        plain = new_engine(label="plain", wait=False, max_num_batched_tokens=256)
        a, b = start("a", "sync"), start("b", "async")
        for engine in (plain, a, b):
            engine.ready()
        # Without a connector, cold, and with the prompt in its own cache: on a CPU these may differ
        # in their last bits, so a hit is held against a hit.
        right = []
        for request in requests:
            plain.reset_prefix_cache()
            want, warm = one(plain, request).tokens, one(plain, request)
            assert warm.num_cached_tokens == LOADED
            assert one(a, request).tokens == want
            right.append(warm.tokens)
        for engine in (b, a):
            for request, want in zip(requests, right):
                answer = one(engine, request)
                assert answer.tokens == want and answer.num_cached_tokens == LOADED
        with kvshm.Arena.attach(name) as arena:
            assert arena.blocks < PROMPTS * LOADED // 32, "all of it fits into memory"
            assert arena.is_valid() == [] and arena.stats().tier_load_failed_total == 0
        for engine in (a, b):
            local, memory, disk = tokens_by_place(engine)
            assert disk > PROMPTS * LOADED / 3, (engine.label, local, memory, disk)
        close_all((a, b))
        forget(name)
        a, b = start("a2", "sync"), start("b2", "async")
        for engine in (a, b):
            engine.ready()
            for request, want in zip(requests, right):
                answer = one(engine, request)
                assert answer.tokens == want and answer.num_cached_tokens == LOADED
        local, memory, disk = tokens_by_place(a)
        assert (local, memory) == (0, 0) and disk == PROMPTS * LOADED
        assert tokens_by_place(b)[2] > 0
        close_all((a, b))
    finally:
        forget(name)


def test_an_engine_that_idles_writes_what_it_gathered(new_engine, tmp_path, full_only):
    """tier_write="idle", in an engine that steps by itself as `vllm serve` does: the step after the
    last request has nothing scheduled."""
    name = f"test-vllm-idle-{os.getpid()}"
    engine = new_engine(label="idle", multiprocessing=True, connector=kvshm_connector(
        {"name": name, "size": "10MiB", "tier": str(tmp_path / "tier"), "tier_size": "64MiB",
         "tier_write": "idle"}))
    try:
        with kvshm.Arena.attach(name) as arena:
            for seed in range(2):
                one(engine, Request(prompt(seed), 16))
                wanted = (seed + 1) * LOADED // 32
                assert eventually(lambda: arena.stats().tier_stored_total >= wanted, 20)
    finally:
        close_all((engine,))
        kvshm.remove(name, force=True)
