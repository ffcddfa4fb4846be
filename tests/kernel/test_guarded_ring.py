# SPDX-License-Identifier: Apache-2.0
"""Blocks that a dead process's io_uring still writes into belong to nobody until it is done.

The ring is not the library's: any runtime's will do, if it is guarded (kvshm_ring_guard). The disk
is throttled, so that the transfers really are in flight when their process dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("kvshm.core")

import kvshm  # noqa: E402
from support import Worker, shm_dir  # noqa: E402
from support.arenas import eventually  # noqa: E402

from .disks import BLANK, MIB, random_file, require_direct_disk, slow_reads  # noqa: E402
from .locks import DEVICE, LIFE, byte_is_held, seconds_until_free  # noqa: E402

pytestmark = pytest.mark.crash
READS, SPARE, MIB_PER_S = 16, 4, 32  # half a second of transfers

READER = """
    import os, sys, kvshm
    from kvshm.uring import Ring
    name, source, reads, blank, guarded = sys.argv[1:]
    arena = kvshm.Arena.attach(name, helper=False, pin="off", label="reader")
    ring = Ring(64)
    if guarded == "guarded":
        arena.guard_ring(ring)
    fill = arena.allocate(int(reads))
    views = [fill.view(i) for i in range(len(fill))]
    for view in views:
        memoryview(view)[:] = bytes([int(blank)]) * arena.block_bytes
    fd = os.open(source, os.O_RDONLY | os.O_DIRECT)
    for i, view in enumerate(views):
        ring.start_read(fd, view, i * arena.block_bytes, i)
    say([arena.slot, [int(i) for i in fill.ids]])
    hear()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = random_file(tmp_path_factory.mktemp("tier") / "tier", READS)
    require_direct_disk(path)
    return path


@pytest.fixture()
def arena(new_name: Callable[[], str]) -> Iterator[kvshm.Arena]:
    """The survivor's. No helper thread: it gives back what a test tells it to."""
    uring = pytest.importorskip("kvshm.uring")
    found = uring.probe(1 << 20)
    if not found.available:
        pytest.skip(f"io_uring: {found.reason}")
    with kvshm.Arena.create(new_name(), blocks=READS + SPARE, block_bytes=MIB, helper=False,
                            pin="off") as made:
        yield made


@pytest.fixture()
def reader(arena: kvshm.Arena, source: Path) -> Iterator[Callable[[str], Worker]]:
    """reader("guarded"): a process with all its reads submitted, on a slow disk."""
    started: list[Worker] = []
    with slow_reads(source, MIB_PER_S) as prefix:

        def run(how: str) -> Worker:
            started.append(Worker(READER, arena.name, source, READS, BLANK, how, under=prefix))
            return started[-1]

        yield run
        for one in started:
            one.close()


class Blocks:
    """The bytes of the arena's blocks, as anybody sees them who looks at the object."""

    def __init__(self, arena: kvshm.Arena, ids: list[int]) -> None:
        self.path, self.ids = shm_dir / f"kvshm.{arena.name}", ids
        self.start = arena.info().data_offset

    def read(self) -> list[bytes]:
        with open(self.path, "rb") as file:
            found = []
            for block in self.ids:
                file.seek(self.start + block * MIB)
                found.append(file.read(MIB))
            return found

    def landed(self) -> int:
        return sum(b[0] != BLANK and b[-1] != BLANK for b in self.read())


def states(arena: kvshm.Arena, ids: list[int]) -> set[int]:
    return {arena.block(block).state for block in ids}


def test_blocks_of_the_dead_wait_for_the_last_transfer(
    arena: kvshm.Arena, reader: Callable[[str], Worker], source: Path
) -> None:
    process = reader("guarded")
    slot, ids = process.hear()
    blocks, path = Blocks(arena, ids), shm_dir / f"kvshm.{arena.name}"
    process.kill()
    seconds_until_free(path, LIFE + slot, 0.5)
    early = blocks.landed()
    assert early < READS, "nothing was in flight: the test shows nothing"

    report = arena.reap()
    assert (report.slots_dead, report.slots_draining, report.fills) == (1, 1, 0)
    with arena.allocate(SPARE) as spare:
        assert not set(spare.ids) & set(ids)
        with pytest.raises(kvshm.NoSpace):
            arena.allocate(1)
        (dead,) = [p for p in arena.processes() if not p.alive]
        assert (dead.slot, dead.device_busy) == (slot, True)
        with kvshm.Arena.attach(arena.name, helper=False, pin="off") as other:
            assert other.slot not in (slot, arena.slot)  # its slot is nobody's either
        assert states(arena, ids) == {kvshm.State.FILLING}
        assert byte_is_held(path, DEVICE + slot), "too late to show anything"

        later = seconds_until_free(path, DEVICE + slot)
    assert blocks.read() == [source.read_bytes()[i * MIB:(i + 1) * MIB] for i in range(READS)]
    print(f"landed: {early} at death, {READS} when the byte was free, after {later:.3f} s")

    assert arena.reap().slots_cleared == 1
    assert states(arena, ids) == {kvshm.State.FREE}
    with arena.allocate(READS + SPARE) as fill:
        for i in range(len(fill)):
            memoryview(fill.view(i))[:] = bytes([BLANK]) * MIB
        time.sleep(0.5)
        assert blocks.read() == [bytes([BLANK]) * MIB] * READS
    assert arena.is_valid() == []


def test_without_the_guard_they_are_overwritten_in_others_hands(
    arena: kvshm.Arena, reader: Callable[[str], Worker]
) -> None:
    """The opposite: what the guard is for."""
    process = reader("unguarded")
    slot, ids = process.hear()
    blocks = Blocks(arena, ids)
    process.kill()
    seconds_until_free(shm_dir / f"kvshm.{arena.name}", LIFE + slot, 0.5)
    assert arena.reap().fills == READS
    with arena.allocate(READS + SPARE) as mine:
        for i in range(len(mine)):
            memoryview(mine.view(i))[:] = bytes([BLANK]) * MIB
        assert eventually(lambda: blocks.landed() > 0), "nothing landed late"
