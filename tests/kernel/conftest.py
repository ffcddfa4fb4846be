# SPDX-License-Identifier: Apache-2.0
"""Fixtures: compiled actors, and objects on each file system that an arena may lie on."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .actors import Actor, build
from .mounts import HUGE, Mount, huge_page_pool, private_mount


@pytest.fixture(scope="session")
def programs() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvshm-kernel-") as folder:
        os.chmod(folder, 0o755)  # other users run them too
        build(Path(folder))
        yield Path(folder)


@pytest.fixture()
def start(programs: Path) -> Iterator[Callable[..., Actor]]:
    """Starts an actor: start("holder", path, ...). Ended with the test, come what may."""
    actors: list[Actor] = []

    def run(name: str, *args: object, under: list[str] | None = None) -> Actor:
        if not (programs / name).exists():
            pytest.skip(f"{name} needs liburing-dev")
        actor = Actor([*(under or []), str(programs / name), *map(str, args)])
        actors.append(actor)
        return actor

    yield run
    for actor in actors:
        actor.end()


@pytest.fixture()
def hold(start: Callable[..., Actor]) -> Callable[..., Actor]:
    """hold(path, how, then): a holder of slot 3 that is ready; its child, if any, in .child"""

    def run(path: Path, how: str = "mapping", then: str = "stay", slot: int = 3) -> Actor:
        actor = start("holder", path, slot, how, then)
        words = actor.line()
        assert words[0] == "ready"
        actor.child = int(words[1]) if len(words) > 1 else None
        return actor

    return run


@pytest.fixture(scope="session", params=["shm", "tmpfs-huge", "hugetlbfs"])
def mount(request: pytest.FixtureRequest) -> Iterator[Mount]:
    """Where arenas live: the shm mount, a tmpfs that gives huge pages, hugetlbfs."""
    if request.param == "shm":
        yield Mount("shm", Path("/dev/shm"), mmap.PAGESIZE)
    elif request.param == "tmpfs-huge":
        with private_mount("tmpfs", "huge=advise,size=256m") as folder:
            yield Mount("tmpfs-huge", folder, mmap.PAGESIZE)
    else:
        with huge_page_pool(40), private_mount("hugetlbfs", "pagesize=2M") as folder:
            yield Mount("hugetlbfs", folder, HUGE)


@pytest.fixture()
def arena(mount: Mount) -> Iterator[Path]:
    """A small object to lock, on each of the file systems."""
    with mount.object(2 * mount.page) as path:
        yield path


@pytest.fixture()
def shm_object() -> Iterator[Path]:
    with Mount("shm", Path("/dev/shm"), mmap.PAGESIZE).object(mmap.PAGESIZE) as path:
        yield path
