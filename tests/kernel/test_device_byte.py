# SPDX-License-Identifier: Apache-2.0
"""The device byte: held by the ring until no transfer of a dead process can land any more.

The disk is throttled, so that the transfers really are in flight when their process dies.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .actors import Actor
from .disks import BLANK, MIB, random_file, require_direct_disk, slow_reads
from .locks import DEVICE, LIFE, byte_is_held, seconds_until_free
from .mounts import Mount

pytestmark = pytest.mark.crash
READS, MIB_PER_S = 16, 32  # half a second of transfers
SLOT = 3
Start = Callable[..., Actor]


class Target:
    """An arena object whose every byte says whether a transfer has been there."""

    def __init__(self, path: Path, reads: int) -> None:
        self.path, self.reads = path, reads
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), reads * MIB)
        self.memory[:] = bytes([BLANK]) * (reads * MIB)

    def landed(self) -> int:
        ends = ((i * MIB, (i + 1) * MIB - 1) for i in range(self.reads))
        return sum(self.memory[a] != BLANK and self.memory[z] != BLANK for a, z in ends)

    def nothing_lands_for(self, seconds: float) -> bool:
        before = self.memory[:]
        time.sleep(seconds)
        return before == self.memory[:]


@contextlib.contextmanager
def target_on(mount: Mount, reads: int) -> Iterator[Target]:
    with mount.object(reads * MIB) as path:
        target = Target(path, reads)
        yield target
        target.memory.close()


@pytest.fixture()
def target(mount: Mount) -> Iterator[Target]:
    with target_on(mount, READS) as made:
        yield made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = random_file(tmp_path_factory.mktemp("tier") / "tier", 64)
    require_direct_disk(path)
    return path


@pytest.fixture()
def slow(source: Path) -> Iterator[list[str]]:
    with slow_reads(source, MIB_PER_S) as prefix:
        yield prefix


@pytest.fixture()
def ring(start: Start, source: Path) -> Callable[..., Actor]:
    """ring(target, registered, dontfork, then, under): one with all its reads submitted."""

    def run(
        target: Target, held: str = "registered", fork: str = "dontfork", then: str = "stay",
        under: list[str] | None = None,
    ) -> Actor:
        args = (target.path, source, SLOT, target.reads, held, fork, then)
        actor = start("ringer", *args, under=under)
        words = actor.line()
        assert words[:2] == ["ready", str(target.reads)]
        actor.child = int(words[2]) if len(words) > 2 else None
        return actor

    return run


def test_nothing_lands_after_the_device_byte_is_free(
    target: Target, ring: Callable[..., Actor], slow: list[str]
) -> None:
    actor = ring(target, under=slow)
    actor.kill()
    seconds_until_free(target.path, LIFE + SLOT, 0.2)
    early = target.landed()
    assert early < READS, "nothing was in flight: the test shows nothing"
    assert byte_is_held(target.path, DEVICE + SLOT)
    later = seconds_until_free(target.path, DEVICE + SLOT)
    landed = target.landed()
    print(f"landed: {early} at death, {landed} when the byte was free, after {later:.3f} s")
    assert landed > early  # the dead process's device did write
    assert target.nothing_lands_for(1.0)


def test_transfers_land_after_an_unregistered_lock_is_free(
    target: Target, ring: Callable[..., Actor], slow: list[str]
) -> None:
    """The opposite: a lock that only a descriptor holds is no device byte."""
    ring(target, "unregistered", under=slow).kill()
    seconds_until_free(target.path, DEVICE + SLOT, 0.2)
    assert not target.nothing_lands_for(1.0)


@pytest.mark.parametrize("mount", ["shm"], indirect=True)
def test_at_full_speed_nothing_lands_either(
    mount: Mount, ring: Callable[..., Actor], source: Path
) -> None:
    with target_on(mount, 64) as target:
        for _ in range(3):
            target.memory[:] = bytes([BLANK]) * len(target.memory)
            ring(target).kill()
            seconds_until_free(target.path, LIFE + SLOT, 0.2)
            seconds_until_free(target.path, DEVICE + SLOT)
            assert target.nothing_lands_for(0.3)


def test_ring_that_ends_gives_the_byte_back_while_its_process_lives(
    target: Target, ring: Callable[..., Actor]
) -> None:
    actor = ring(target, then="exit")
    assert actor.line() == ["closed"]
    seconds_until_free(target.path, DEVICE + SLOT)
    assert byte_is_held(target.path, LIFE + SLOT)
    assert target.landed() == READS


def test_child_without_the_rings_memory_does_not_prolong_it(
    target: Target, ring: Callable[..., Actor]
) -> None:
    actor = ring(target, then="clone")
    actor.kill()
    seconds_until_free(target.path, LIFE + SLOT)
    seconds_until_free(target.path, DEVICE + SLOT)
    assert actor.child is not None
    os.kill(actor.child, 0)


def test_child_with_the_rings_memory_prolongs_it(
    target: Target, ring: Callable[..., Actor]
) -> None:
    """The opposite: a forgotten child would keep every block of the dead one FILLING."""
    actor = ring(target, fork="mapped", then="clone")
    actor.kill()
    seconds_until_free(target.path, LIFE + SLOT)
    deadline = time.monotonic() + 10
    while target.landed() < READS and time.monotonic() < deadline:
        time.sleep(0.01)
    assert target.landed() == READS
    time.sleep(0.3)
    assert byte_is_held(target.path, DEVICE + SLOT)
    actor.kill_child()
    seconds_until_free(target.path, DEVICE + SLOT)


@pytest.mark.parametrize("how", ["threads", "aio"])
def test_other_ways_of_reading_need_no_device_byte(
    target: Target, start: Start, source: Path, slow: list[str], how: str
) -> None:
    """The kernel lets a process with blocking or AIO reads die only when they have ended."""
    actor = start("blocker", target.path, source, SLOT, READS, how, under=slow)
    assert actor.line() == ["ready"]
    assert target.landed() < READS, "nothing was in flight: the test shows nothing"
    actor.kill()
    seconds_until_free(target.path, LIFE + SLOT)
    assert target.nothing_lands_for(1.0)
