# SPDX-License-Identifier: Apache-2.0
"""Real vLLM engines for the tests of the connector. A start takes 10 to 40 seconds: share them."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kvshm.tools.environments import Absent
from kvshm.tools.vllm.client import Engine, close_all
from kvshm.tools.vllm.environment import python_of_vllm
from kvshm.tools.vllm.models import models
from kvshm.tools.vllm.options import Options

HERE = Path(__file__).resolve().parent
LIMIT = 1200  # seconds: the first test may have to make the environment

NewEngine = Callable[..., Engine]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LIMIT))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """For each engine: OpenMP's threads spin at their barriers, so that beside anything else on
    their cores they take ten times as long; and how many there are changes the last bits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        yield


@pytest.fixture
def full_only(request: pytest.FixtureRequest) -> None:
    """For a test that starts engines of its own for little more than others show."""
    if not request.config.getoption("--full-scenarios"):
        pytest.skip("starts engines of its own, and the folder has seven minutes: --full-scenarios")


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of an environment with a real vLLM."""
    try:
        return python_of_vllm()
    except Absent as error:
        pytest.skip(f"no vLLM: {error}")


@pytest.fixture(scope="session")
def model(vllm_python: Path) -> Callable[[str], Path]:
    """``model("tiny-llama")``: the folder of a model or adapter of kvshm.tools.vllm.models."""
    return lambda name: models(vllm_python, name)[name]


@pytest.fixture(scope="module")
def new_engine(vllm_python: Path, model: Callable[[str], Path]) -> Iterator[NewEngine]:
    """``new_engine("tiny-llama", label="a", wait=False, block_size=32, ...)``: an Engine with these
    Options; modules for call() may lie in this folder. All end with the module."""
    started: list[Engine] = []

    def start(name: str = "tiny-llama", label: str = "vllm", wait: bool = True,
              **options: Any) -> Engine:
        every = Options(model(name), **{"pythonpath": (HERE,), **options})
        started.append(Engine(vllm_python, every, label, wait))
        return started[-1]

    yield start
    close_all(started)
