# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the scenarios: fast workers that can import ``support``, counts, private mounts."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("kvshm.core")

from support import Worker  # noqa: E402
from support.mock_device import build  # noqa: E402
from support.nursery import ForkedWorker, Nursery  # noqa: E402
from support.player import PLAYER, Player  # noqa: E402

_TESTS = str(Path(__file__).resolve().parents[1])
_ENV = {"PYTHONPATH": os.pathsep.join([_TESTS, os.environ.get("PYTHONPATH", "")])}


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest) -> Callable[[int, int], int]:
    """``rounds(few, full)``: how often to repeat; all of it with --full-scenarios."""
    everything = request.config.getoption("--full-scenarios")
    return lambda few, full: full if everything else few


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    one = Nursery(_ENV)
    yield one
    one.close()


# Asks for new_name so that workers end before their arenas are unlinked.
@pytest.fixture
def start(nursery: Nursery, new_name: Callable[[], str]) -> Iterator[Callable[..., Worker]]:
    """``start(code, *args)``: a worker forked from a process that has kvshm imported."""
    started: list[Worker] = []

    def run(code: str, *args: object, env: dict[str, str] | None = None) -> Worker:
        started.append(ForkedWorker(nursery, code, *args, env=env))
        return started[-1]

    yield run
    for one in started:
        one.close()


@pytest.fixture
def launch(new_name: Callable[[], str]) -> Iterator[Callable[..., Worker]]:
    """``launch(code, *args, under=[...], env={})``: a worker with an interpreter of its own."""
    started: list[Worker] = []

    def run(code: str, *args: object, env: dict[str, str] | None = None,
            under: list[str] | None = None) -> Worker:
        started.append(Worker(code, *args, env={**_ENV, **(env or {})}, under=under or []))
        return started[-1]

    yield run
    for one in started:
        one.close()


@pytest.fixture(scope="session")
def mock_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A device that registers memory at a pace of its own (support.mock_device)."""
    return build(tmp_path_factory.mktemp("mock"))


@pytest.fixture
def player(start: Callable[..., Worker]) -> Callable[..., Player]:
    """``player()``: a process that does what the test says (support.player)."""
    return lambda **options: Player(start(PLAYER, **options))


@pytest.fixture
def fresh_player(launch: Callable[..., Worker]) -> Callable[..., Player]:
    """As player, with an interpreter of its own: under=[...] puts it into a namespace."""
    return lambda **options: Player(launch(PLAYER, **options))
