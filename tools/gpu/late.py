# SPDX-License-Identifier: Apache-2.0
"""SIGKILL while the device copies into blocks: until when does it write, and is that in time?"""
from __future__ import annotations

import ctypes as c
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .driver import Gpu
from .library import ROOT, Arena

MIB = 1 << 20
BLOCKS, BLOCK_BYTES = 64, 2 * MIB


def victim(library: str, name: str) -> None:
    """Copies from the device into blocks of its fill, without an end."""
    gpu, arena = Gpu(), Arena(Path(library), name)
    arena.register(piece=1 << 30)
    fill = arena.allocate(BLOCKS)
    stream, device = gpu.stream(), gpu.memory(BLOCK_BYTES)
    number = 0
    while True:
        number += 1
        gpu.fill(device, number % 251, BLOCK_BYTES)
        for handle in fill:
            gpu.to_host(arena.data(handle.id), device, BLOCK_BYTES, stream)
        if number == 3:
            print("running", flush=True)
        if number % 8 == 0:  # a queue that is deep, but not without bounds
            gpu.wait(stream)


class Watch:
    """Sees any byte of the data that changes."""

    def __init__(self, arena: Arena) -> None:
        self.libc = c.CDLL(None)
        self.at, self.n = arena.data(), BLOCKS * BLOCK_BYTES
        self.copy = c.create_string_buffer(self.n)

    def changed(self) -> bool:
        if self.libc.memcmp(c.c_void_p(self.at), self.copy, c.c_size_t(self.n)) == 0:
            return False
        c.memmove(self.copy, self.at, self.n)
        return True


def one_round(library: Path, name: str, delay: float) -> dict[str, Any]:
    """Milliseconds after the kill: the process was gone, the last write was seen, the slot was
    given back; and whether anything was written after that."""
    arena = Arena(library, name, blocks=BLOCKS, block_bytes=BLOCK_BYTES)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tools" / "gpu_check"), "--victim", str(library), name],
        stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"running\n":
            raise RuntimeError(f"the victim ended with {process.wait(30)}")
        slot, watch = arena.slot_of(process.pid), Watch(arena)
        assert slot is not None
        time.sleep(delay)
        killed = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        gone = last = cleared = None
        wrong = writing = 0
        while cleared is None or time.monotonic() < cleared + 1:
            if watch.changed():
                last = time.monotonic()  # at the latest: a look takes some milliseconds
                writing += 1
                wrong += cleared is not None
            if gone is None and process.poll() is not None:
                gone = time.monotonic()
            arena.reap()
            if cleared is None and not arena.process(slot).used:
                cleared = time.monotonic()
            if time.monotonic() > killed + 60:
                raise RuntimeError("the slot was not given back within 60 s")
        return dict(
            gone_ms=None if gone is None else round(1000 * (gone - killed), 1),
            last_write_ms=None if last is None else round(1000 * (last - killed), 1),
            writes_seen=writing, cleared_ms=round(1000 * (cleared - killed), 1),
            written_after_clear=wrong, broken=arena.broken())
    finally:
        process.kill()
        process.wait(30)
        arena.close()
        arena.remove()
