# SPDX-License-Identifier: Apache-2.0
"""The controller of `adaptive` is killed: the next one goes on where it stood."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import kvshm
import numpy as np
import pytest
from kvshm import eviction
from kvshm.eviction import adaptive
from kvshm.eviction.policies import weighted
from kvshm.eviction.serving import serve
from support import Worker
from support.arenas import eventually
from support.cli import kvshm_cli
from support.oracle import raw_keys

pytestmark = pytest.mark.crash

BLOCKS = 1024
LEADER = """
    import sys, time, kvshm
    from kvshm.eviction import adaptive
    arena = kvshm.Arena.attach(sys.argv[1], helper=sys.argv[2] == "helper")
    say("ready")
    while True:
        if sys.argv[2] == "step":
            adaptive.step(arena)
        time.sleep(0.001)
"""


@pytest.fixture
def arena(arena_name: str) -> Iterator[Any]:
    with kvshm.Arena.create(arena_name, blocks=BLOCKS, block_bytes=0, pin="off",
                            helper=False) as one:
        yield one
        assert one.is_valid() == []


def controller(arena: Any) -> Any:
    return kvshm_cli("stat", arena.name, "--json").json["policy"]["controller"]


def all_taken(arena: Any) -> bool:
    """Each record that was ever made is taken, or known to be lost."""
    now = controller(arena)
    return bool(now["records"] + now["lost"] == arena.stats().touch_records_total)


def use(arena: Any, first: int, n: int) -> None:
    """Chains of 8 under n keys from the first on, stored or matched."""
    bounds = np.arange(0, n + 1, 8, dtype=np.int64)
    serve(arena, raw_keys(first, n), bounds, np.zeros(n // 8, np.int32))


@pytest.mark.parametrize("how", ["step", "helper"])
def test_the_next_controller_goes_on(arena: Any, worker: Callable[..., Worker],
                                     tests_path: dict[str, str], how: str) -> None:
    leader = worker(LEADER, arena.name, how, env=tests_path)
    assert leader.hear() == "ready"
    # A hot set, then scans: what the weights hit is not the same.
    for _ in range(10):
        use(arena, 0, BLOCKS // 8)
    for i in range(3):
        use(arena, 10_000 * (i + 1), 4 * BLOCKS)
        use(arena, 0, BLOCKS // 8)
        assert eventually(lambda: all_taken(arena))
    assert adaptive.step(arena) == 0, "another process leads"

    leader.kill()
    left, table = controller(arena), eviction.get_policy(arena)
    assert left["records"] > 100 and max(left["hits"]) > 0
    assert table.version > 1
    assert table == replace(weighted(left["weight"]), version=table.version)

    use(arena, 0, BLOCKS // 8)
    taken = adaptive.step(arena)
    assert taken > 0 and all_taken(arena)
    now = controller(arena)
    assert now["records"] == left["records"] + taken and now["lost"] == left["lost"]
    assert all(after > before * 0.9 for after, before in zip(now["hits"], left["hits"]))
    if now["switches"] == left["switches"]:
        assert eviction.get_policy(arena) == table
    else:
        assert eviction.get_policy(arena).version > table.version
