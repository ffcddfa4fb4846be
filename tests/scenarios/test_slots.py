# SPDX-License-Identifier: Apache-2.0
"""Slots at their limits: the 49th process, two slots of one process, and what a process may do to
its descriptors and children without losing or prolonging its life byte."""
from __future__ import annotations

import contextlib
import os
import signal
import textwrap
from collections.abc import Callable, Iterator

import pytest
from support import shm_dir
from support.arenas import eventually
from support.player import Player

pytest.importorskip("kvshm.tools")

from kvshm.tools.inspector import locks  # noqa: E402

pytestmark = pytest.mark.crash
SLOTS = 48
OPEN = ("kvshm.Arena.open({name!r}, blocks=64, block_bytes=4096, pin='off', helper=False, "
        "label={label!r})")
Players = Callable[..., Player]


def held(name: str, byte: int) -> bool:
    fd = os.open(shm_dir / f"kvshm.{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return locks.held(fd, byte)
    finally:
        os.close(fd)


@pytest.fixture
def attached(player: Players, new_name: Callable[[], str]) -> Callable[..., Player]:
    """attached("label"): a process in an arena, which all calls of one test share; no helper."""
    name = new_name()

    def one(label: str = "worker") -> Player:
        made = player()
        made.do(f"arena = {OPEN.format(name=name, label=label)}")
        made.name = name  # type: ignore[attr-defined]
        return made

    return one


@pytest.fixture
def orphans() -> Iterator[list[int]]:
    """Children whose parents are killed: ended with the test."""
    found: list[int] = []
    yield found
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_49th_process(attached: Callable[..., Player], player: Players) -> None:
    crowd = [attached(f"worker-{i}") for i in range(SLOTS)]
    name = crowd[0].name  # type: ignore[attr-defined]
    extra = player()
    code = f"arena = {OPEN.format(name=name, label='late')}"
    refused = extra.fails(code)
    assert refused.kind == "NoSlot"
    assert f"all 48 slots of arena {name} are taken" in refused.text
    assert f"pid {crowd[0].pid} worker-0" in refused.text
    assert "drain" not in refused.text
    assert crowd[7].get("len(arena.processes())") == SLOTS  # and nobody has noticed

    crowd[5].kill()  # its slot is taken over, and what it held is given back
    extra.do(code)
    assert extra.get("arena.slot") == 5
    assert player().fails(code).kind == "NoSlot"
    crowd[6].end()
    another = player()
    another.do(code)
    assert another.get("arena.slot") == 6


def test_closerange_in_a_live_process(attached: Callable[..., Player]) -> None:
    victim, other = attached("victim"), attached("other")
    name, slot = victim.name, victim.get("arena.slot")  # type: ignore[attr-defined]
    victim.do("""
        from kvshm.uring import Ring
        fill = arena.allocate(2, keys=np.arange(1, 33, dtype=np.uint8).reshape(2, 16))
        lease = fill.register()
        try:
            ring = Ring(4)
            arena.guard_ring(ring)
        except (ImportError, OSError):
            ring = None
        os.closerange(3, 4096)
    """)
    assert held(name, locks.life(slot))
    if victim.get("ring is not None"):
        assert held(name, locks.device(slot))  # the ring's memory keeps it, not its descriptor
    assert other.get("arena.reap().slots_dead") == 0
    # And it goes on: everything that needs a description opens one anew.
    third = attached("third")
    third.do("lease = arena.allocate(1)")
    third.kill()
    assert victim.get("arena.reap().slots_cleared") == 1
    assert victim.get("len(arena.match(np.arange(1, 33, dtype=np.uint8).reshape(2, 16)))") == 2
    assert victim.get("len(arena.allocate(60))") == 60
    victim.kill()
    assert eventually(lambda: not held(name, locks.life(slot)))
    assert eventually(lambda: other.get("arena.reap().slots_draining") == 0)
    assert other.get("arena.stats()['blocks_held']") == 0


CHILDREN = {
    "fork": "child = os.fork()",
    "raw clone": """
        import ctypes, platform
        libc = ctypes.CDLL(None, use_errno=True)
        number = {'x86_64': 56, 'aarch64': 220}[platform.machine()]
        child = libc.syscall(number, int(signal.SIGCHLD), 0, 0, 0, 0)
    """,
}


@pytest.mark.parametrize("how", CHILDREN)
def test_child_does_not_prolong_a_dead_parent(
    attached: Callable[..., Player], orphans: list[int], how: str
) -> None:
    parent, other = attached("parent"), attached("other")
    name, slot = parent.name, parent.get("arena.slot")  # type: ignore[attr-defined]
    parent.do("fill = arena.allocate(3)")
    parent.do(textwrap.dedent(CHILDREN[how]) + textwrap.dedent("""
        if child == 0:
            signal.alarm(60)
            while True:
                signal.pause()
    """))
    orphans.append(parent.get("child"))
    assert orphans[0] > 0 and held(name, locks.life(slot))
    os.kill(parent.pid, signal.SIGKILL)
    assert eventually(lambda: not held(name, locks.life(slot)), 1.0)
    os.kill(orphans[0], 0)  # it is there, and says nothing about its parent
    assert other.get("tuple(arena.reap())")[:3] == [1, 1, 0]
    assert other.get("arena.stats()['blocks_free']") == 64


def test_two_attachments_of_one_process(attached: Callable[..., Player]) -> None:
    twice, other = attached("first"), attached("other")
    name = twice.name  # type: ignore[attr-defined]
    twice.do(f"""
        second = {OPEN.format(name=name, label='second')}
        wanted = np.arange(1, 33, dtype=np.uint8).reshape(2, 16)
        one = arena.allocate(2, keys=wanted).register()
        two = second.match(wanted)
        fill = second.allocate(1)
    """)
    slots = twice.get("[arena.slot, second.slot]")
    assert len(set(slots)) == 2 and other.get("arena.slot") not in slots
    rows = [p for p in other.get("[[p.slot, p.pid, p.label] for p in arena.processes()]")
            if p[1] == twice.pid]
    assert sorted(rows) == sorted([[slots[0], twice.pid, "first"], [slots[1], twice.pid, "second"]])
    both = twice.get("arena.block(int(one.ids[0])).holders")
    assert both == sum(1 << s for s in slots)
    # Neither takes the other for dead.
    assert twice.get("[arena.reap().slots_dead, second.reap().slots_dead]") == [0, 0]

    # Closing one (it closes descriptors of the object, too) leaves the other as it was.
    twice.do("one.release()\narena.close()")
    assert not held(name, locks.life(slots[0])) and held(name, locks.life(slots[1]))
    assert other.get("arena.reap().slots_dead") == 0
    assert twice.get("second.block(int(two.ids[0])).holders") == 1 << slots[1]
    twice.do(f"arena = {OPEN.format(name=name, label='third')}\none = arena.match(wanted)")
    twice.kill()
    report = other.get("tuple(arena.reap())")
    assert report[:2] == [2, 2] and report[3:5] == [4, 1]
