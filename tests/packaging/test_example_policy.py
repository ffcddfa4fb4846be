# SPDX-License-Identifier: Apache-2.0
"""examples/policy builds by its own pyproject, and `kvshm agent` runs both of its policies."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import kvshm
import pytest
from kvshm import eviction
from support.arenas import keys, store
from support.building import pip
from support.cli import spawn_cli

PROJECT = Path(__file__).parents[2] / "examples" / "policy"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside the kvshm of this Python, in a folder that goes with the tests."""
    folder = tmp_path_factory.mktemp("policy")
    shutil.copytree(PROJECT, folder / "project", ignore=shutil.ignore_patterns(
        "__pycache__", "*.cpp", "build", "*.egg-info"))
    before = os.environ.get("CFLAGS")
    os.environ["CFLAGS"] = "-O0"  # quicker to build
    try:
        pip("install", "--no-build-isolation", "--no-deps", "--target", folder / "site",
            folder / "project", python=Path(sys.executable))
    finally:
        os.environ.pop("CFLAGS") if before is None else os.environ.update(CFLAGS=before)
    return folder / "site"


def mark(site: Path, name: str, policy: str, n: int) -> None:
    agent = spawn_cli("agent", name, "--policy", policy, "--low", n, "--high", n, "--once",
                      env={**os.environ, "PYTHONPATH": str(site)})
    out, err = agent.communicate(timeout=60)
    assert agent.returncode == 0, err
    assert f"{n} blocks marked in 1 refill" in out


@pytest.fixture
def chains(arena_name: str) -> object:
    """Two chains of twenty blocks fill an arena: of tenant 1, and, younger, of nobody."""
    with kvshm.Arena.create(arena_name, blocks=40, block_bytes=64, pin="off", helper=False) as one:
        made = [keys(20, 1), keys(20, 2)]
        for tenant, chain in zip((1, 0), made):
            store(one, chain, tenant=tenant).release()
        yield one, made


def gone(arena: object, n: int) -> list[bytes]:
    with arena.allocate(n) as fill:  # type: ignore[attr-defined]
        return [bytes(key) for key in fill.evicted]


def test_the_policy_in_cython(installed, chains):
    """By age alone all of the old chain would go first. Its head stays, the young tail goes."""
    arena, (old, young) = chains
    mark(installed, arena.name, "kv_policy_example.heads:policy", 24)
    assert gone(arena, 24) == [bytes(key) for chain in (old, young) for key in chain[:7:-1]]
    code = ("import numpy as np, kvshm\nfrom kvshm import eviction\n"
            "from kv_policy_example.heads import policy\nprint(type(policy).__name__)")
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True,
                          env={**os.environ, "PYTHONPATH": str(installed)}, timeout=60)
    assert done.stdout == "Scorer\n", done.stderr


def test_the_policy_in_python(installed, chains):
    arena, (old, young) = chains
    mark(installed, arena.name, "kv_policy_example.cost:Cheapest", 4)
    assert eviction.marks_left(arena) == 4
    assert gone(arena, 4) == [bytes(key) for key in young[:-5:-1]]  # the tenant's stay longer
