# SPDX-License-Identifier: Apache-2.0
"""Fixtures for every test: arena names of its own, their removal, and second processes."""
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import PREFIX, Worker, remove_leftovers, remove_stale

_counter = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full-scenarios", action="store_true",
                     help="tests/scenarios with all the rounds that the scenarios ask for (hours)")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which tests tools/test -n 2 runs side by side."""
    from support.scheduling import FolderScheduling

    return FolderScheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _no_stale_arenas() -> None:
    remove_stale()


@pytest.fixture
def new_name() -> Iterator[Callable[[], str]]:
    """Makes arena names that nobody else uses; whatever is left of them goes after the test."""
    yield lambda: f"{PREFIX}{next(_counter)}"
    remove_leftovers()


@pytest.fixture
def arena_name(new_name: Callable[[], str]) -> str:
    """The name of an arena that does not exist yet."""
    return new_name()


# Asks for new_name so that workers end before their arenas are unlinked.
@pytest.fixture
def worker(new_name: Callable[[], str]) -> Iterator[Callable[..., Worker]]:
    """``worker(code, *args)`` starts a Python process (support.worker); all end with the test."""
    started: list[Worker] = []

    def start(code: str, *args: object, env: dict[str, str] | None = None) -> Worker:
        started.append(Worker(code, *args, env=env))
        return started[-1]

    yield start
    for one in started:
        one.close()
