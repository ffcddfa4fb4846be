# SPDX-License-Identifier: Apache-2.0
"""The life byte: held as long as the process, and not a moment longer, whatever it does.

Each claim on each file system that an arena may lie on; where the opposite can be had, it is
shown too, by a holder that does it the other way.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .actors import Actor
from .locks import LIFE, byte_is_held, seconds_until_free, set_byte

pytestmark = pytest.mark.crash
Hold = Callable[..., Actor]
BYTE = LIFE + 3


def wait_until_stopped(actor: Actor) -> None:
    os.waitid(os.P_PID, actor.pid, os.WSTOPPED | os.WNOWAIT)  # it stops or dies by its alarm


def test_mapping_keeps_the_lock_after_its_descriptor_is_closed(arena: Path, hold: Hold) -> None:
    hold(arena)
    assert byte_is_held(arena, BYTE)
    assert not byte_is_held(arena, BYTE + 1)


def test_without_the_mapping_closing_the_descriptor_loses_it(arena: Path, hold: Hold) -> None:
    hold(arena, "nothing")
    assert not byte_is_held(arena, BYTE)


def test_held_byte_is_refused_to_another(arena: Path, hold: Hold) -> None:
    hold(arena)
    fd = os.open(arena, os.O_RDWR | os.O_CLOEXEC)
    with pytest.raises(OSError) as refusal:
        set_byte(fd, fcntl.F_WRLCK, BYTE)
    assert refusal.value.errno == errno.EAGAIN
    set_byte(fd, fcntl.F_WRLCK, BYTE + 1)
    os.close(fd)


def test_sigkill_frees_it(arena: Path, hold: Hold) -> None:
    holder = hold(arena)
    assert byte_is_held(arena, BYTE)
    holder.kill()
    # Memory is torn down before the parent can reap, so there is no gap to wait out.
    assert seconds_until_free(arena, BYTE) < 0.1


def test_close_range_does_not_lose_it(arena: Path, hold: Hold) -> None:
    hold(arena, "mapping", "close_range")
    assert byte_is_held(arena, BYTE)


def test_close_range_loses_a_descriptor(arena: Path, hold: Hold) -> None:
    hold(arena, "descriptor", "close_range")
    assert not byte_is_held(arena, BYTE)


@pytest.mark.parametrize("then", ["fork", "clone"])
def test_child_does_not_prolong_it(arena: Path, hold: Hold, then: str) -> None:
    holder = hold(arena, "mapping", then)
    holder.kill()
    seconds_until_free(arena, BYTE)
    assert holder.child is not None
    os.kill(holder.child, 0)  # it is still there


@pytest.mark.parametrize("then", ["fork", "clone"])
@pytest.mark.parametrize("how", ["mapping-inherited", "descriptor"])
def test_child_prolongs_what_it_inherits(arena: Path, hold: Hold, how: str, then: str) -> None:
    holder = hold(arena, how, then)
    holder.kill()
    time.sleep(0.05)
    assert byte_is_held(arena, BYTE)
    holder.kill_child()
    seconds_until_free(arena, BYTE)


def test_child_in_the_same_memory_prolongs_it(arena: Path, hold: Hold) -> None:
    """Rightly so: it could still write to the arena."""
    holder = hold(arena, "mapping", "share")
    holder.kill()
    time.sleep(0.05)
    assert byte_is_held(arena, BYTE)
    holder.kill_child()
    seconds_until_free(arena, BYTE)


def test_vforked_program_does_not_prolong_it(arena: Path, hold: Hold) -> None:
    holder = hold(arena, "mapping", "vfork")
    assert byte_is_held(arena, BYTE)
    holder.kill()
    seconds_until_free(arena, BYTE)
    assert holder.child is not None
    os.kill(holder.child, 0)


@pytest.mark.parametrize("how, kept", [("mapping", False), ("descriptor", True)])
def test_exec_frees_the_mapping_but_not_a_descriptor(
    arena: Path, hold: Hold, how: str, kept: bool
) -> None:
    holder = hold(arena, how, "exec")
    wait_until_stopped(holder)
    assert byte_is_held(arena, BYTE)
    os.kill(holder.pid, signal.SIGCONT)
    assert holder.line() == ["ready"]  # said by the program that came after
    assert byte_is_held(arena, BYTE) is kept


def test_stopped_process_keeps_it_until_it_is_killed(arena: Path, hold: Hold) -> None:
    holder = hold(arena, "mapping", "stop")
    wait_until_stopped(holder)
    assert byte_is_held(arena, BYTE)
    holder.kill()
    seconds_until_free(arena, BYTE)


def test_end_of_the_main_thread_is_not_death(arena: Path, hold: Hold) -> None:
    holder = hold(arena, "mapping", "end_main_thread")
    stat = Path(f"/proc/{holder.pid}/stat").read_text()
    assert stat.rsplit(")", 1)[1].split()[0] == "Z"  # this is what a look at the pid shows
    assert byte_is_held(arena, BYTE)
    holder.kill()
    seconds_until_free(arena, BYTE)


def reserved_huge_pages() -> int:
    text = Path("/proc/meminfo").read_text()
    return int(next(x for x in text.splitlines() if x.startswith("HugePages_Rsvd")).split()[1])


@pytest.mark.parametrize("mount", ["hugetlbfs"], indirect=True)  # the one that reserves at mmap
@pytest.mark.parametrize("how, pages", [("mapping", 0), ("mapping-readable", 1)])
def test_untouchable_mapping_reserves_no_huge_page(
    arena: Path, hold: Hold, how: str, pages: int
) -> None:
    before = reserved_huge_pages()
    hold(arena, how)
    assert reserved_huge_pages() - before == pages
