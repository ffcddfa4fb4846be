# SPDX-License-Identifier: Apache-2.0
"""How long registration takes by size and piece, and whether the device reads and writes blocks."""
from __future__ import annotations

import ctypes as c
import time
from pathlib import Path
from typing import Any

from .driver import Gpu
from .library import REGISTERED, Arena

MIB = 1 << 20


def timed(gpu: Gpu, library: Path, name: str, mebibytes: int,
          piece_mebibytes: int) -> dict[str, Any]:
    """One arena, one size of pieces: register, use, undo."""
    arena = Arena(library, name, blocks=max(4, mebibytes // 2), block_bytes=2 * MIB)
    try:
        begun = time.monotonic()
        got = arena.register(piece=piece_mebibytes * MIB)
        took = time.monotonic() - begun
        gib = got.bytes_registered / (1 << 30)
        found = dict(mebibytes=mebibytes, piece_mebibytes=piece_mebibytes, pieces=got.pieces,
                     all=got.state == REGISTERED, reason=got.reason.decode(),
                     register_ms_per_gib=round(1000 * took / gib, 2))
        found |= copies(gpu, arena)
        begun = time.monotonic()
        arena.unregister()
        found["unregister_ms_per_gib"] = round(1000 * (time.monotonic() - begun) / gib, 2)
        found["unregistered"] = copies(gpu, arena)["to_host_gb_per_s"]
        found["again"] = arena.register(piece=piece_mebibytes * MIB).state == REGISTERED
        arena.close()
        return found
    finally:
        arena.remove()


def copies(gpu: Gpu, arena: Arena) -> dict[str, Any]:
    """Blocks filled by the device and read back by it: right bytes, and at which rate."""
    nbytes, n = 2 * MIB, 4
    device, back, stream = gpu.memory(nbytes), gpu.memory(nbytes), gpu.stream()
    fill = arena.allocate(n)
    right, rounds = True, 16
    begun = time.monotonic()
    for _ in range(rounds):
        for i, handle in enumerate(fill):
            gpu.to_host(arena.data(handle.id), device, nbytes, stream)
    gpu.wait(stream)
    rate = rounds * n * nbytes / (time.monotonic() - begun) / 1e9
    for i, handle in enumerate(fill):
        gpu.fill(device, 17 + i, nbytes)
        gpu.to_host(arena.data(handle.id), device, nbytes, stream)
        gpu.wait(stream)
        right = right and c.string_at(arena.data(handle.id), nbytes) == bytes([17 + i]) * nbytes
        c.memset(arena.data(handle.id), 99 - i, nbytes)
        gpu.to_device(back, arena.data(handle.id), nbytes, stream)
        other = arena.data(fill[(i + 1) % n].id)
        gpu.to_host(other, back, nbytes, stream)
        gpu.wait(stream)
        right = right and c.string_at(other, nbytes) == bytes([99 - i]) * nbytes
    arena.abort(fill)
    gpu.free(device)
    gpu.free(back)
    return dict(right=right, to_host_gb_per_s=round(rate, 2))


def beside_others(gpu: Gpu, library: Path, name: str) -> dict[str, Any]:
    """What somebody else has registered is taken as it is, left alone, and leaves no error."""
    arena = Arena(library, name, blocks=16, block_bytes=2 * MIB)
    try:
        data, nbytes, before = arena.data(), 16 * 2 * MIB, runtime_error()
        gpu("cuMemHostRegister_v2", c.c_void_p(data), c.c_size_t(nbytes), 3)
        got = arena.register(piece=8 * MIB)
        found = dict(all_foreign=got.bytes_foreign == nbytes,
                     left_pending=runtime_error() != before)
        arena.unregister()
        gpu("cuMemHostUnregister", c.c_void_p(data))  # fails if we had undone it
        page = data + 6 * MIB
        gpu("cuMemHostRegister_v2", c.c_void_p(page), c.c_size_t(4096), 3)
        got = arena.register(piece=8 * MIB, require=False)
        found["all_but_one_block"] = got.bytes_registered == nbytes - 2 * MIB
        found["left_pending"] |= runtime_error() != before
        arena.unregister()
        gpu("cuMemHostUnregister", c.c_void_p(page))
        arena.close()
        return found
    finally:
        arena.remove()


def runtime_error() -> int | None:
    """The error that a CUDA runtime of this process would report next; None: there is none here."""
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        try:
            return int(c.CDLL(name).cudaPeekAtLastError())
        except (OSError, AttributeError):
            continue
    return None
