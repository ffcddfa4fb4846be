# SPDX-License-Identifier: Apache-2.0
"""GPU-direct storage: blocks of a tier into device memory, by each path: bytes, and the rate."""
from __future__ import annotations

import ctypes as c
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from .driver import Gpu
from .library import Arena, Handle, KvshmError

AUTO, OFF = 0, 2
PATHS = ("memory", "host", "direct")
BLOCK = 2 << 20
LIMIT_MS = 60000


class TierOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("paths", c.POINTER(c.c_char_p)), ("npaths", c.c_uint32),
                *((n, c.c_uint32) for n in ("engine", "direct", "sync", "write", "admit", "queue",
                                            "deadline_ms")),
                ("bytes", c.c_uint64), ("reserved", c.c_uint64 * 8)]


class Buffer(c.Structure):
    _fields_ = [("address", c.c_uint64), ("bytes", c.c_uint64)]


class Piece(c.Structure):
    _fields_ = [("address", c.c_uint64), ("bytes", c.c_uint64), ("offset", c.c_uint64)]


class GdsOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("buffers", c.POINTER(Buffer)), ("nbuffers", c.c_uint32),
                *((n, c.c_uint32) for n in ("load", "store", "flags", "timeout_ms")),
                ("device", c.c_int32)]


class Gds(c.Structure):
    _fields_ = [("size", c.c_size_t), ("load", c.c_uint32), ("store", c.c_uint32),
                *((n, c.c_uint64 * 3) for n in ("loads", "stores", "load_bytes", "store_bytes")),
                *((n, c.c_uint32) for n in ("switches", "buffers", "may_stage", "stage_pinned")),
                ("why", c.c_char * 256)]


def one_path(gpu: Gpu, library: Path, name: str, mode: int, blocks: int) -> dict[str, Any]:
    """mode: AUTO or OFF. The file: in KVSHM_GPU_CHECK_DIR, or where temporary files go."""
    with tempfile.TemporaryDirectory(prefix="kvshm-gpu-check-",
                                     dir=os.environ.get("KVSHM_GPU_CHECK_DIR")) as folder:
        arena = Arena(library, name, blocks=blocks, block_bytes=BLOCK)
        try:
            return _one_path(gpu, arena, f"{folder}/tier", mode, blocks)
        except KvshmError as error:
            return dict(wanted=("auto", "require", "off")[mode], right=False, why=str(error))
        finally:
            arena.close()
            arena.remove()


def _one_path(gpu: Gpu, arena: Arena, path: str, mode: int, blocks: int) -> dict[str, Any]:
    lib = arena.lib
    paths = (c.c_char_p * 1)(path.encode())
    # Exactly the arena's blocks and the file's own records: no slot is taken for another's.
    arena.check(lib.kvshm_tier_open(arena.ptr, c.byref(TierOptions(
        size=c.sizeof(TierOptions), paths=paths, npaths=1, bytes=(blocks + 8) * BLOCK))))
    keys = random.Random(5).randbytes(16 * blocks)
    wanted = [random.Random(i).randbytes(BLOCK) for i in range(blocks)]
    handles, count = (Handle * blocks)(), c.c_uint32(blocks)
    arena.check(lib.kvshm_allocate(arena.ptr, count, keys, None, handles, None, None))
    for handle, data in zip(handles, wanted, strict=True):
        c.memmove(arena.data(handle.id), data, BLOCK)
    arena.check(lib.kvshm_register(arena.ptr, handles, count, None, c.c_uint32(0), handles, None))
    arena.check(lib.kvshm_drop(arena.ptr, handles, count))
    arena.check(lib.kvshm_tier_drain(arena.ptr, c.c_uint32(LIMIT_MS)))
    arena.check(lib.kvshm_evict(arena.ptr, keys, count))

    memory, stream = gpu.memory(blocks * BLOCK), gpu.stream()
    try:
        address = int(memory.value or 0)
        gpu.fill(memory, 0, blocks * BLOCK)
        buffer = Buffer(address, blocks * BLOCK)
        arena.check(lib.kvshm_gds_open(arena.ptr, c.byref(GdsOptions(
            size=c.sizeof(GdsOptions), buffers=c.pointer(buffer), nbuffers=1, load=mode, store=OFF,
            device=-1))))
        codes, begun = [], time.monotonic()
        for i in range(blocks):
            piece = Piece(address + i * BLOCK, BLOCK, 0)
            codes.append(lib.kvshm_gds_load(arena.ptr, keys[16 * i:16 * i + 16], c.byref(piece),
                                            c.c_uint32(1), c.c_uint32(LIMIT_MS)))
        took = time.monotonic() - begun
        room = c.create_string_buffer(blocks * BLOCK)
        gpu.to_host(c.addressof(room), memory, blocks * BLOCK, stream)
        gpu.wait(stream)
        right = not any(codes) and room.raw == b"".join(wanted)
        s = Gds(size=c.sizeof(Gds))
        arena.check(lib.kvshm_get_gds(arena.ptr, c.byref(s)))
        return dict(wanted=("auto", "require", "off")[mode], path=PATHS[s.load], right=right,
                    loads=dict(zip(PATHS, s.loads, strict=True)), may_stage=bool(s.may_stage),
                    why=s.why.decode(), load_gb_per_s=round(blocks * BLOCK / took / 1e9, 3),
                    broken=arena.broken())
    finally:
        gpu.free(memory)
