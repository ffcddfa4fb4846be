# SPDX-License-Identifier: Apache-2.0
"""A pool's copies of device memory, on a CUDA driver without a GPU. Only a process that was
started with that driver finds it: all cases run in one of their own."""
from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from kvshm.records import Presence
from support.arenas import keys
from support.mock_device import build, run_cases

CASES = Path(__file__).with_name("pool_cases.py")


def test_a_pool_on_device_memory(tmp_path):
    run_cases(CASES, tmp_path, 9)


KILLED = """
sys.path.insert(0, sys.argv[2])
import types
import kvshm, numpy as np
from support.arenas import keys
from support.mock_cuda import Cuda
from support.mock_model import Tensor
sys.modules["torch"] = Cuda().module()
from kvshm import device
memory = Tensor(np.full((4, 4096), 7, np.uint8))
memory.device = "cuda:0"
arena = kvshm.Arena.attach(sys.argv[1], pin="off", helper=False)
pool = device.Pool(arena, {"a": memory}, 4, drain=float(sys.argv[3]))
assert arena.wait_device(10)
stored = pool.offload(pool.allocate(2), keys(2))
say([stored.done(), arena.slot])
hear()
"""


@pytest.mark.crash
@pytest.mark.parametrize("drain", [0.3, 3.5])  # the default is 2
def test_45_a_process_killed_in_the_midst_of_a_store(worker, make_arena, tmp_path, drain):
    """Its blocks are never found, and given to nobody before what it had under way has landed: as
    long as the pool was told that this takes."""
    driver = build(tmp_path, cuda=True)
    arena = make_arena(blocks=4, block_bytes=4096)
    one = worker(KILLED, arena.name, Path(__file__).parents[1], drain,
                 env={"LD_LIBRARY_PATH": str(driver.parent)})
    done, slot = one.hear(60)
    assert not done and arena.stats().blocks_filling == 2
    os.kill(one.pid, signal.SIGKILL)
    one.process.wait(10)
    dead = time.monotonic()
    while arena.stats().blocks_filling:
        assert not (arena.presence(keys(2)) & Presence.G2).any()
        assert time.monotonic() < dead + 30
        arena.reap()
        time.sleep(0.005)
    assert time.monotonic() - dead >= drain - 0.05
    assert not arena.presence(keys(2)).any() and arena.is_valid() == []
    assert len(arena.allocate(4)) == 4
