# SPDX-License-Identifier: Apache-2.0
"""The kernel behaviours that safety rests on, played with real processes that are really killed.

Runs in a process of its own (see behaviours.py), which has no threads and may fork freely.
Prints one JSON list of [name, status, found].
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import F_RDLCK, F_WRLCK
from pathlib import Path

from . import libc
from .shm import reopen, scratch

LIFE, DEVICE = (1 << 62) + 3, (1 << 62) + 64 + 3
LIMIT = 5  # seconds, of anything that is waited for
READ, READS, FILE = 1 << 20, 48, 8  # bytes of a transfer, transfers, different ones
ROUNDS = 3

Act = Callable[[int], None]  # what a child does; it is given its end of the pipe


class Skip(Exception):
    pass


class Child:
    """A forked process that does something, says one number and stays until it is killed."""

    def __init__(self, act: Act) -> None:
        self._end, start = os.pipe()  # not inherited over exec: its end shows there
        self.pid = os.fork()
        if self.pid == 0:
            try:
                signal.alarm(2 * LIMIT)
                act(start)
                pause()
            finally:
                os._exit(1)
        os.close(start)

    def said(self) -> int:
        got = os.read(self._end, 8)  # its alarm ends it, and with it this wait
        if len(got) < 8:
            raise Skip("the process played could not do its part")
        return int(struct.unpack("q", got)[0])

    def became(self, program: str) -> bool:
        """Waits until exec has closed its end of the pipe."""
        os.read(self._end, 1)
        return Path(f"/proc/{self.pid}/comm").read_text().strip() == program

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._end)


def say(pipe: int, number: int = 1) -> None:
    os.write(pipe, struct.pack("q", number))


@contextmanager
def playing(act: Act) -> Iterator[Child]:
    child = Child(act)
    try:
        yield child
    finally:
        try:
            child.kill()
        except ProcessLookupError:
            pass  # the scene has killed it


def pause() -> None:
    while True:
        time.sleep(LIMIT)


def held(fd: int, byte: int) -> bool:
    """Through a fresh read-only description, as the arena's own probes are."""
    fresh = reopen(fd, os.O_RDONLY)
    try:
        return libc.byte_is_held(fresh, byte)
    finally:
        os.close(fresh)


def freed(fd: int, byte: int) -> bool:
    deadline = time.monotonic() + LIMIT
    while held(fd, byte):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0002)
    return True


def take_life(fd: int) -> None:
    """As the arena takes it: an untouchable private mapping keeps the description."""
    own = reopen(fd)
    libc.lock_byte(own, F_WRLCK, LIFE)
    page = os.fstatvfs(own).f_bsize
    at = libc.map_file(own, page, libc.PROT_NONE, libc.MAP_PRIVATE | libc.MAP_NORESERVE)
    libc.advise(at, page, libc.MADV_DONTFORK)
    os.close(own)


# -- the scenes: each returns what was found, or raises AssertionError with it ---------------


def mapping_keeps_lock(fd: int) -> str:
    def act(pipe: int) -> None:
        take_life(fd)
        say(pipe)

    with playing(act) as child:
        child.said()
        assert held(fd, LIFE), "lost when its descriptor was closed"
        child.kill()
        assert freed(fd, LIFE), "still held after SIGKILL"
    return "kept by a mapping alone, freed by SIGKILL"


def close_range_keeps_lock(fd: int) -> str:
    def act(pipe: int) -> None:
        take_life(fd)
        lowest = os.dup2(pipe, 3)
        libc.close_range(lowest + 1, 0xFFFFFFFF)
        say(lowest)

    with playing(act) as child:
        child.said()
        assert held(fd, LIFE), "lost by close_range"
    return "close_range of everything leaves it"


def clone_does_not_keep_lock(fd: int) -> str:
    def act(pipe: int) -> None:
        take_life(fd)
        other = libc.raw_clone()
        if other == 0:
            signal.alarm(2 * LIMIT)
            pause()
        say(pipe, other)

    with playing(act) as child:
        other = child.said()
        child.kill()
        try:
            assert freed(fd, LIFE), "a raw-clone child keeps the lock of its dead parent"
            os.kill(other, 0)
        finally:
            os.kill(other, signal.SIGKILL)
    return "a raw-clone child that lives on does not keep it"


def exec_frees_lock(fd: int) -> str:
    def act(pipe: int) -> None:
        take_life(fd)
        say(pipe)
        os.execvp("sleep", ["sleep", str(2 * LIMIT)])

    with playing(act) as child:
        child.said()
        if not child.became("sleep"):
            raise Skip("no program to become")
        assert freed(fd, LIFE), "held over exec"
    return "lost on exec"


def lock_and_itself(fd: int) -> str:
    """Not a fault whichever way, but the arena counts on it: each claim opens afresh."""
    first, second = reopen(fd), reopen(fd)
    try:
        libc.lock_byte(first, F_WRLCK, LIFE)
        libc.lock_byte(first, F_WRLCK, LIFE)
        assert not libc.byte_is_held(first, LIFE), "a description sees its own lock"
        assert libc.byte_is_held(second, LIFE), "another description does not see it"
        try:
            libc.lock_byte(second, F_WRLCK, LIFE)
        except BlockingIOError:
            return "never conflicts with itself, always with another description"
        raise AssertionError("two descriptions hold one lock")
    finally:
        os.close(first)
        os.close(second)


def ring_keeps_lock(fd: int, folder: Path) -> str:
    free = os.fstatvfs(fd).f_bavail * os.fstatvfs(fd).f_frsize
    reads = min(READS, free // (8 * READ) * 2)  # an even number: whole huge pages
    if reads < FILE:
        raise Skip("too little room on the shm mount to show it")
    os.posix_fallocate(fd, 0, reads * READ)
    with scratch(folder, 0) as plain, mmap.mmap(fd, reads * READ) as arena:
        source = fill_directly(plain)
        try:
            for _ in range(ROUNDS):
                late = one_round(fd, source, arena, reads)
                if late:
                    return f"kept until the last transfer ({late} of {reads} landed after death)"
        finally:
            os.close(source)
    return "held by the ring; the disk is too fast for more"


def one_round(fd: int, source: int, arena: mmap.mmap, reads: int) -> int:
    """Kills a process with reads in flight; how many landed after it was dead."""
    from kvshm import uring

    def act(pipe: int) -> None:
        take_life(fd)
        arena[:] = bytes(reads * READ)  # pages present, the reads start faster than they land
        ring = uring.Ring(reads)
        own = reopen(fd, os.O_RDONLY)
        libc.lock_byte(own, F_RDLCK, DEVICE)
        ring.register_files([own])
        os.close(own)
        for i in range(reads):
            place = memoryview(arena)[i * READ:(i + 1) * READ]
            ring.start_read(source, place, i % FILE * READ, i)
        say(pipe)
        pause()

    with playing(act) as child:
        child.said()
        assert held(fd, DEVICE), "the ring does not hold the device byte"
        child.kill()
        early = landed(arena)
        assert freed(fd, LIFE), "the life byte waits for the ring"
        assert freed(fd, DEVICE), "the device byte is never freed"
        then, late = arena[:], landed(arena)
        time.sleep(0.1)
        assert then == arena[:], "a transfer landed after the device byte was free"
    return late - early


def fill_directly(plain: int) -> int:
    try:
        source = reopen(plain, os.O_RDWR | os.O_DIRECT)
    except OSError as e:
        raise Skip(f"no O_DIRECT: {e.strerror}") from e
    with mmap.mmap(-1, READ) as buffer:
        buffer[:] = b"\x01" * READ
        for i in range(FILE):
            os.pwritev(source, [buffer], i * READ)
    return source


def landed(arena: mmap.mmap) -> int:
    return sum(arena[end - 1] == 1 for end in range(READ, len(arena) + 1, READ))


def main(arenas: str, tier: str) -> None:
    scenes: list[tuple[str, Callable[[int], str]]] = [
        ("life byte", mapping_keeps_lock),
        ("life byte, close_range", close_range_keeps_lock),
        ("life byte, clone", clone_does_not_keep_lock),
        ("life byte, exec", exec_frees_lock),
        ("lock descriptions", lock_and_itself),
        ("device byte", lambda fd: ring_keeps_lock(fd, Path(tier))),
    ]
    results = []
    for name, play in scenes:
        try:
            with scratch(Path(arenas), mmap.PAGESIZE) as fd:
                results.append([name, "ok", play(fd)])
        except AssertionError as e:
            results.append([name, "fail", str(e)])
        except (Skip, OSError, ImportError) as e:
            results.append([name, "skip", str(e)])
    json.dump(results, sys.stdout)
