# SPDX-License-Identifier: Apache-2.0
"""The vLLM connector under a mock engine (support.mock_engine): no vLLM is needed."""
from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("kvshm.core")

import kvshm  # noqa: E402
from support.mock_engine import Engine  # noqa: E402
from support.mock_transfers import Script  # noqa: E402
from support.mock_truth import Truth  # noqa: E402
from support.mock_vllm import KVConnectorRole, installed  # noqa: E402


@pytest.fixture
def module() -> Iterator[Any]:
    """kvshm.connectors.vllm.connector, imported against a mock vLLM."""
    with installed() as one:
        yield one


@pytest.fixture
def script(module: Any, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Loads and saves fail or wait as the test says."""
    return Script().install(monkeypatch, module)


@pytest.fixture
def prompt() -> Callable[..., list[int]]:
    """prompt(n, seed): n tokens."""
    return lambda n, seed=0: random.Random(seed).choices(range(1000), k=n)


@pytest.fixture
def engine(module: Any, arena_name: str) -> Iterator[Callable[..., Engine]]:
    """engine(size=..., ...): an engine on the arena of this test; options of the connector in
    `options`. At the end of the test the arena has no broken invariant."""
    made: list[Engine] = []

    def make(make: Any = None, options: dict[str, Any] | None = None, **more: Any) -> Engine:
        made.append(Engine(make or module.KvshmConnector, KVConnectorRole,
                           {"name": arena_name, **(options or {})}, **more))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()
    try:
        with kvshm.Arena.attach(arena_name, helper=False) as arena:
            assert arena.is_valid() == []
            stats = arena.stats()
            assert stats.blocks_held == stats.blocks_filling == 0
    except kvshm.ArenaNotFound:
        pass  # the test removed it, or switched it off


@pytest.fixture
def truth(arena_name: str) -> Iterator[Callable[[Engine], Truth]]:
    made: list[Truth] = []

    def make(engine: Engine) -> Truth:
        made.append(Truth(engine, arena_name))
        return made[-1]

    yield make
    for one in made:
        one.close()
