# SPDX-License-Identifier: Apache-2.0
"""All 48 processes of an arena die at once, each with a transfer under way on a slow disk."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("kvshm.core")

import kvshm  # noqa: E402
from support import shm_dir  # noqa: E402
from support.nursery import ForkedWorker, Nursery  # noqa: E402

from .disks import random_file, require_direct_disk, slow_reads  # noqa: E402
from .locks import DEVICE, LIFE, byte_is_held, seconds_until_free  # noqa: E402

pytestmark = pytest.mark.crash
SLOTS, MIB_PER_S = 48, 16  # three seconds of transfers

READER = """
    import os, sys, kvshm
    from kvshm.uring import Ring
    name, source, number = sys.argv[1:]
    arena = kvshm.Arena.open(name, blocks=64, block_bytes="1MiB", helper=False, pin="off",
                             label=f"reader-{number}")
    fd = os.open(source, os.O_RDONLY | os.O_DIRECT)
    ring = Ring(4)
    arena.guard_ring(ring)
    fill = arena.allocate(1)
    say(arena.slot)
    hear()
    ring.start_read(fd, fill.view(0), int(number) << 20, 1)
    say("reading")
    hear()
"""


@pytest.fixture()
def readers(new_name: Callable[[], str], tmp_path: Path) -> Iterator[list[ForkedWorker]]:
    """48 processes with a block each, told to read but not yet reading; the slow disk is theirs."""
    uring = pytest.importorskip("kvshm.uring")
    found = uring.probe(1 << 20)
    if not found.available:
        pytest.skip(f"io_uring: {found.reason}")
    source = random_file(tmp_path / "tier", SLOTS)
    require_direct_disk(source)
    name, nursery, started = new_name(), Nursery({}), []
    with slow_reads(source, MIB_PER_S) as (*_, group):
        for number in range(SLOTS):
            started.append(ForkedWorker(nursery, READER, name, source, number))
            started[-1].name = name  # type: ignore[attr-defined]
            Path(group).write_text(str(started[-1].pid))
        yield started
        for one in started:
            one.close()
        nursery.close()


def test_48_draining_slots(readers: list[ForkedWorker]) -> None:
    name = readers[0].name  # type: ignore[attr-defined]
    path = shm_dir / f"kvshm.{name}"
    assert sorted(one.hear() for one in readers) == list(range(SLOTS))
    for one in readers:
        one.say("read")
    for one in readers:
        assert one.hear() == "reading"
    for one in readers:
        os.kill(one.pid, 9)
    for one in readers:
        one.kill()
    for slot in range(SLOTS):
        seconds_until_free(path, LIFE + slot, 1)
    draining = [slot for slot in range(SLOTS) if byte_is_held(path, DEVICE + slot)]
    if len(draining) == SLOTS:  # else the first one was done already
        with pytest.raises(kvshm.NoSlot) as refused:
            kvshm.Arena.attach(name, helper=False, pin="off")
        text = str(refused.value)
        print(text)
        assert "all 48 slots" in text and "48 drain" in text
        assert f"pid {readers[0].pid} reader-0" in text
        assert "a device may still write" in text

    # Whoever asks again gets the first slot that is done; what the others wait for, stays.
    deadline = time.monotonic() + 20
    while True:
        try:
            arena = kvshm.Arena.attach(name, helper=False, pin="off")
            break
        except kvshm.NoSlot:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with arena:
        filling = [b for b in range(arena.blocks) if arena.block(b).state == kvshm.State.FILLING]
        assert len(filling) < SLOTS
        for slot in range(SLOTS):
            if slot != arena.slot:
                seconds_until_free(path, DEVICE + slot)
        arena.reap()
        assert arena.stats()["blocks_free"] == arena.blocks
        assert [p.pid for p in arena.processes()] == [os.getpid()]
        assert arena.is_valid() == []
