# SPDX-License-Identifier: Apache-2.0
"""Small arenas for tests, checked when the test is over, and keys for them."""
import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import kvshm
import numpy as np
import pytest

BLOCK = 4096


def keys(n: int, seed: int = 0) -> np.ndarray:
    """n keys that differ in every seed and place."""
    out = np.zeros((n, 16), np.uint8)
    for i in range(n):
        number = (seed << 32 | i) + 1
        low = number * 0x9E3779B97F4A7C15 % 2**64
        out[i] = np.frombuffer(low.to_bytes(8, "little") + (low ^ number).to_bytes(8, "big"),
                               np.uint8)
    return out


def content(key: bytes | np.ndarray, size: int = BLOCK) -> bytes:
    """What the block of a key holds in these tests: no two keys have the same."""
    return bytes(key) * (size // 16)


def store(arena: kvshm.Arena, wanted: np.ndarray, **options) -> kvshm.Lease:
    """Write content() under each key and register it, held."""
    with arena.allocate(len(wanted), keys=wanted, **options) as fill:
        for i, key in enumerate(wanted):
            fill.view(i)[:] = content(key, arena.block_bytes)
        return fill.register()


def gauges(arena: kvshm.Arena) -> dict[str, int]:
    """The gauges of the statistics that count blocks."""
    stats = arena.stats()
    return {name[7:]: stats[name] for name in stats if name.startswith("blocks_")}


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether it becomes true within the limit."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def start_together(parties: int, delay: float = 0.3) -> float:
    """A moment, on the clock that all processes share, for them to begin at."""
    return time.monotonic() + delay + 0.02 * parties


@pytest.fixture
def tests_path() -> dict[str, str]:
    """Environment of a worker that imports ``support``."""
    tests = str(Path(__file__).resolve().parent.parent)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH", "")]))}


@pytest.fixture
def make_arena(new_name: Callable[[], str]) -> Iterator[Callable[..., kvshm.Arena]]:
    """make_arena(blocks=16, ...): an attached arena. At the end of the test no invariant of it may
    be broken, and it is closed and removed."""
    made: list[kvshm.Arena] = []

    def make(blocks: int = 16, block_bytes: int = BLOCK, **options) -> kvshm.Arena:
        options.setdefault("pin", "off")
        made.append(kvshm.Arena.create(new_name(), blocks=blocks, block_bytes=block_bytes,
                                       **options))
        return made[-1]

    yield make
    gc.collect()  # views in reference cycles of a failed test
    for arena in made:
        try:
            if not arena.closed:
                assert eventually(lambda arena=arena: arena.is_valid() == []), arena.is_valid()
        except kvshm.ArenaReplaced:
            pass
        finally:
            arena.close()


@pytest.fixture
def arena(make_arena: Callable[..., kvshm.Arena]) -> kvshm.Arena:
    """An arena of 16 blocks of 4 KiB, without an identity."""
    return make_arena()


def evicted_one_by_one(arena, n):
    """Keys in the order in which they go, one an allocation."""
    order, fills = [], []
    for _ in range(n):
        fills.append(arena.allocate(1))
        order += [bytes(key) for key in fills[-1].evicted]
    return order
