# SPDX-License-Identifier: Apache-2.0
"""What open-file-description locks do, as claims, reaps and probes rely on it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .actors import Actor
from .locks import DEVICE, FLOCK, LIFE, LIMIT, byte_is_held, set_byte

BYTE = LIFE + 7
NOBODY = 65534


@pytest.fixture()
def description(shm_object: Path) -> Iterator[int]:
    fd = os.open(shm_object, os.O_RDWR | os.O_CLOEXEC)
    yield fd
    os.close(fd)


def seen_through(fd: int) -> bool:
    ask = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, BYTE, 1, 0)
    return bool(FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, ask))[0] != fcntl.F_UNLCK)


def test_one_description_takes_one_lock_twice(description: int, shm_object: Path) -> None:
    """Hence a fresh description for each claim and each reap."""
    winners = []

    def claim() -> None:
        set_byte(description, fcntl.F_WRLCK, BYTE)
        winners.append(threading.get_ident())

    threads = [threading.Thread(target=claim) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(winners) == 2
    second = os.open(shm_object, os.O_RDWR | os.O_CLOEXEC)
    with pytest.raises(BlockingIOError):
        set_byte(second, fcntl.F_WRLCK, BYTE)
    os.close(second)


def test_duplicated_descriptor_is_the_same_description(description: int) -> None:
    set_byte(description, fcntl.F_WRLCK, BYTE)
    copy = os.dup(description)
    set_byte(copy, fcntl.F_WRLCK, BYTE)
    os.close(copy)
    assert not seen_through(description)


def test_owner_must_probe_from_another_description(description: int, shm_object: Path) -> None:
    set_byte(description, fcntl.F_WRLCK, BYTE)
    assert not seen_through(description)
    assert byte_is_held(shm_object, BYTE)


def test_closing_another_description_does_not_lose_the_lock(
    description: int, shm_object: Path
) -> None:
    set_byte(description, fcntl.F_WRLCK, BYTE)
    os.close(os.open(shm_object, os.O_RDWR | os.O_CLOEXEC))
    assert byte_is_held(shm_object, BYTE)


def test_posix_lock_is_lost_by_closing_any_descriptor(description: int, shm_object: Path) -> None:
    """Why F_SETLK is never used."""
    lock = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, BYTE, 1, 0)
    fcntl.fcntl(description, fcntl.F_SETLK, lock)
    assert byte_is_held(shm_object, BYTE)  # which opens and closes one: that is the last of it
    assert not byte_is_held(shm_object, BYTE)


def test_read_only_description_probes_but_takes_no_write_lock(shm_object: Path) -> None:
    fd = os.open(shm_object, os.O_RDONLY | os.O_CLOEXEC)
    with pytest.raises(OSError) as refusal:
        set_byte(fd, fcntl.F_WRLCK, BYTE)
    assert refusal.value.errno == errno.EBADF
    assert not byte_is_held(shm_object, BYTE)
    os.close(fd)


def test_read_lock_through_read_only_description_is_seen_and_shared(shm_object: Path) -> None:
    """So a ring needs no writable description, and several rings share a device byte."""
    rings = [os.open(shm_object, os.O_RDONLY | os.O_CLOEXEC) for _ in range(2)]
    for fd in rings:
        set_byte(fd, fcntl.F_RDLCK, DEVICE + 7)
    os.close(rings.pop())
    assert byte_is_held(shm_object, DEVICE + 7)
    os.close(rings.pop())
    assert not byte_is_held(shm_object, DEVICE + 7)


def test_locks_belong_to_the_object_not_to_its_name(description: int, shm_object: Path) -> None:
    """Why a name is checked to lead to the locked object still."""
    set_byte(description, fcntl.F_WRLCK, BYTE)
    moved = shm_object.with_name(shm_object.name + ".moved")
    shm_object.rename(moved)
    shm_object.write_bytes(b"")
    try:
        assert byte_is_held(moved, BYTE)
        assert not byte_is_held(shm_object, BYTE)
    finally:
        moved.rename(shm_object)


def ask_as_nobody(programs: Path, path: Path, mode: str, what: str, byte: int) -> str:
    if os.geteuid():
        pytest.skip("becoming another user needs root")
    command = [programs / "asker", path, mode, what, byte, NOBODY]
    done = subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=LIMIT)
    return done.stdout.strip()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o660])
@pytest.mark.parametrize("how", ["r", "w"])
def test_other_user_cannot_even_probe_a_closed_object(
    shm_object: Path, programs: Path, mode: int, how: str
) -> None:
    shm_object.chmod(mode)
    answer = ask_as_nobody(programs, shm_object, how, "held", BYTE)
    assert answer == f"error open {errno.EACCES}"


def test_other_user_with_read_permission_sees_and_can_hold_a_device_byte(
    shm_object: Path, programs: Path, hold: Callable[..., Actor]
) -> None:
    """The cost of letting others read: mode 0600 is the default for this."""
    shm_object.chmod(0o644)
    hold(shm_object, slot=7)
    assert ask_as_nobody(programs, shm_object, "r", "held", BYTE) == "held 1"
    assert ask_as_nobody(programs, shm_object, "r", "held", BYTE + 1) == "held 0"
    answer = ask_as_nobody(programs, shm_object, "r", "write", BYTE + 1)
    assert answer == f"write {errno.EBADF}"
    assert ask_as_nobody(programs, shm_object, "r", "read", DEVICE + 7) == "read 0"
    assert ask_as_nobody(programs, shm_object, "w", "held", BYTE) == f"error open {errno.EACCES}"
