# SPDX-License-Identifier: Apache-2.0
"""LMCache's local disk, with O_DIRECT, from host memory and into it. Told what the role `disk` of
kvshm_bench is told (read, one, write, with milliseconds), and answers in its words."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import driver
import lmcache
import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.local_disk_backend import LocalDiskBackend

TOKENS, HEADS = 256, 8  # of a block: 2 x 1 x TOKENS x width numbers of 2 bytes
ALIGN = 4096  # of memory, as O_DIRECT wants it
QUEUED = 16
LIMIT = 60.0
SEED = 7


class Disk:
    def __init__(self, folder: str, nbytes: int, block: int, run: int, memory: int) -> None:
        self._run, self._block = run, block
        width = block // (2 * TOKENS * 2)
        if block % ALIGN or width * 2 * TOKENS * 2 != block or width % HEADS:
            driver.fail(f"blocks of {block} bytes")
        self._shape = torch.Size([2, 1, TOKENS, width])
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=TOKENS, local_cpu=False, max_local_cpu_size=memory / (1 << 30),
            local_disk=folder, max_local_disk_size=nbytes / (1 << 30), save_unfull_chunk=False,
            extra_config={"use_odirect": True, "local_cpu.pinned_align_bytes": ALIGN})
        about = LMCacheMetadata(
            model_name="bench", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
            kv_dtype=torch.bfloat16, kv_shape=(1, 2, TOKENS, HEADS, width // HEADS))
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._memory = LocalCPUBackend(config, about, "cpu")
        self._disk = LocalDiskBackend(config, self._loop, self._memory, "cpu", None, about)
        if not self._disk.use_odirect or block % self._disk.os_disk_bs:
            driver.fail("it does not use O_DIRECT")
        self._newest, self._landed = 0, threading.Semaphore(QUEUED)
        self._fill_memory()
        self._count = nbytes // block
        self._write(lambda: self._newest >= self._count)
        self._next = self._shuffled()

    def _shuffled(self) -> Iterator[int]:
        """What was written last is what is there."""
        order = list(range(self._newest - self._count, self._newest))
        random.Random(SEED).shuffle(order)
        return itertools.cycle(order)

    def key(self, number: int) -> CacheEngineKey:
        return CacheEngineKey(model_name="bench", world_size=1, worker_id=0, chunk_hash=number + 1,
                              dtype=torch.bfloat16)

    def read(self, over: Callable[[], bool]) -> tuple[int, list[int]]:
        moved = 0
        while not over():
            keys = [self.key(next(self._next)) for _ in range(self._run)]
            moved += sum(map(self._given_back, self._disk.batched_get_blocking(keys)))
        return moved, []

    def one(self, over: Callable[[], bool]) -> tuple[int, list[int]]:
        moved, took = 0, []
        while not over():
            key = self.key(next(self._next))
            start = time.perf_counter_ns()
            got = self._disk.get_blocking(key)
            took.append(time.perf_counter_ns() - start)
            moved += self._given_back(got)
        return moved, took

    def write(self, over: Callable[[], bool]) -> tuple[int, list[int]]:
        moved = self._write(over)
        self._next = self._shuffled()
        return moved, []

    def _write(self, over: Callable[[], bool]) -> int:
        first = self._newest
        while not over():
            self._wait(1)
            block = self._memory.allocate(self._shape, torch.bfloat16)
            if block is None:
                driver.fail("no memory for a block")
            self._disk.submit_put_task(self.key(self._newest), block,
                                       on_complete_callback=lambda _: self._landed.release())
            block.ref_count_down()
            self._newest += 1
        self._wait(QUEUED)
        for _ in range(QUEUED):
            self._landed.release()
        if not self._disk.contains(self.key(self._newest - 1)):
            driver.fail("a block was not stored")
        return (self._newest - first) * self._block

    def _fill_memory(self) -> None:
        """With what no drive takes for nothing, before anything is timed."""
        bytes_ = torch.randint(0, 255, (self._block,), dtype=torch.uint8)
        held = []
        while (block := self._memory.allocate(self._shape, torch.bfloat16,
                                              eviction=False)) is not None:
            if block.data_ptr % ALIGN:
                driver.fail("memory that O_DIRECT does not take")
            block.tensor.view(torch.uint8).view(-1).copy_(bytes_)
            held.append(block)
        for block in held:
            block.ref_count_down()

    def _wait(self, n: int) -> None:
        for _ in range(n):
            if not self._landed.acquire(timeout=LIMIT):
                driver.fail(f"a block was not written within {LIMIT:.0f} s")

    def _given_back(self, block: Any) -> int:
        if block is None:
            driver.fail("a block that was stored was not found")
        block.ref_count_down()
        return self._block

    def close(self) -> None:
        self._disk.close()
        self._loop.call_soon_threadsafe(self._loop.stop)


def passed(ns: int) -> bool:
    return time.perf_counter_ns() >= ns


def main() -> None:
    out = driver.protect_stdout()
    folder, *numbers = sys.argv[1:]
    disk = Disk(folder, *map(int, numbers))
    try:
        print(json.dumps({"version": lmcache.__version__}), file=out, flush=True)
        for line in sys.stdin:
            word, ms = line.split()
            rounds = {"read": disk.read, "one": disk.one, "write": disk.write}
            start = time.perf_counter_ns()
            moved, took = rounds[word](partial(passed, start + int(ms) * 1_000_000))
            answer = {"gb_per_second": moved / (time.perf_counter_ns() - start)}
            if took:
                took.sort()
                answer |= {"p50_us": took[len(took) // 2] / 1000,
                           "p99_us": took[min(len(took) - 1, len(took) * 99 // 100)] / 1000}
            print(json.dumps(answer), file=out, flush=True)
    finally:
        disk.close()


if __name__ == "__main__":
    main()
