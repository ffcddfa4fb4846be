# SPDX-License-Identifier: Apache-2.0
"""An engine's paged KV on the device, in each of vLLM's physical layouts: stored to blocks and
loaded from them by a stream: the bytes, and the rate beside a plain copy of pinned memory.

The tensors are torch's where it has CUDA, and compared with what its indexing gives; else memory of
the driver."""
from __future__ import annotations

import ctypes as c
import random
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from .driver import Gpu
from .library import Arena, Handle

# S: K and V apart; without H: one latent a token.
ORDERS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC", "SLBNHC", "LBNC", "SLHBNC")
QUICK = {"L": 4, "B": 24, "S": 2, "H": 2, "N": 16, "C": 256}
FULL = {"L": 32, "B": 96, "S": 2, "H": 8, "N": 16, "C": 256}  # C: bytes of a token at a head
CUDA_MEMORY = 1


class Run(c.Structure):
    _fields_ = [(name, c.c_uint64) for name in ("address", "stride", "bytes", "offset")]


class Pages(c.Structure):
    _fields_ = [("size", c.c_size_t), ("runs", c.POINTER(Run)), ("nruns", c.c_uint32),
                ("rows", c.c_uint32), ("slice_bytes", c.c_uint64), ("memory", c.c_uint32),
                ("zero", c.c_uint32), ("stream", c.c_void_p)]


class Rows:
    """Memory of the driver. shape: by dimension; `at`: which of them counts the rows."""

    kind = "driver"

    def __init__(self, gpu: Gpu, shape: list[int], at: int) -> None:
        self.gpu, self.nbytes = gpu, prod(shape)
        self.made: Any = gpu.stream()
        self.outer, self.rows, self.inner = prod(shape[:at]), shape[at], prod(shape[at + 1:])
        self.memory = gpu.memory(self.nbytes)
        self.address, self.stream = int(self.memory.value or 0), int(self.made.value or 0)

    def set(self, seed: int) -> None:
        self._copy(random.Random(seed).randbytes(self.nbytes), True)

    def _copy(self, host: bytes, to_device: bool) -> bytes:
        room = c.create_string_buffer(host, self.nbytes)
        if to_device:
            self.gpu.to_device(self.memory, c.addressof(room), self.nbytes, self.made)
        else:
            self.gpu.to_host(c.addressof(room), self.memory, self.nbytes, self.made)
        self.wait()
        return room.raw

    def all_rows(self) -> list[bytes]:
        whole = self._copy(b"", False)
        return [b"".join(whole[(o * self.rows + row) * self.inner:][:self.inner]
                         for o in range(self.outer)) for row in range(self.rows)]

    def wait(self) -> None:
        self.gpu.wait(self.made)

    def free(self) -> None:
        self.gpu.free(self.memory)


class TorchRows(Rows):
    kind = "torch"

    def __init__(self, torch: Any, shape: list[int], at: int) -> None:
        self.torch, self.at = torch, at
        self.base = torch.zeros(shape, dtype=torch.uint8, device="cuda")
        self.outer, self.rows, self.inner = prod(shape[:at]), shape[at], prod(shape[at + 1:])
        self.made, self.address = torch.cuda.Stream(), self.base.data_ptr()
        self.stream = self.made.cuda_stream

    def set(self, seed: int) -> None:
        made = self.torch.Generator(device="cuda").manual_seed(seed)
        self.base.copy_(self.torch.randint(0, 256, self.base.shape, dtype=self.torch.uint8,
                                           device="cuda", generator=made))
        self.torch.cuda.synchronize()

    def all_rows(self) -> list[bytes]:
        self.torch.cuda.synchronize()
        return [bytes(self.base.select(self.at, row).contiguous().cpu().view(-1).numpy())
                for row in range(self.rows)]

    def wait(self) -> None:
        self.made.synchronize()

    def free(self) -> None:
        del self.base


def tensors(gpu: Gpu) -> Callable[[list[int], int], Rows]:
    try:
        import torch

        if torch.cuda.is_available():
            return lambda shape, at: TorchRows(torch, shape, at)
    except ImportError:
        pass
    return lambda shape, at: Rows(gpu, shape, at)


def one_layout(gpu: Gpu, library: Path, name: str, order: str, sizes: dict[str, int]
               ) -> dict[str, Any]:
    rows = tensors(gpu)([sizes[letter] for letter in order], order.index("B"))
    slice_bytes, n = rows.outer * rows.inner, rows.rows // 3
    arena = Arena(library, name, blocks=n, block_bytes=slice_bytes)
    try:
        arena.register(piece=1 << 30)
        return {"order": order, "tensors": rows.kind, "runs": rows.outer,
                "run_bytes": rows.inner} | _copies(gpu, arena, rows, n, slice_bytes)
    finally:
        rows.free()
        arena.unregister()
        arena.close()
        arena.remove()


def _table(arena: Arena, rows: Rows, slice_bytes: int) -> Pages:
    runs = (Run * rows.outer)(*[
        Run(rows.address + o * rows.rows * rows.inner, rows.inner, rows.inner, o * rows.inner)
        for o in range(rows.outer)])
    arena.lib.kvshm_pages_prepare.restype = c.c_int64
    left = arena.check(arena.lib.kvshm_pages_prepare(
        runs, c.c_uint32(rows.outer), c.c_uint32(rows.rows), c.c_uint64(slice_bytes), None))
    return Pages(c.sizeof(Pages), runs, left, rows.rows, slice_bytes, CUDA_MEMORY, 0, rows.stream)


def _copies(gpu: Gpu, arena: Arena, rows: Rows, n: int, slice_bytes: int) -> dict[str, Any]:
    table, lib = _table(arena, rows, slice_bytes), arena.lib
    for function in (lib.kvshm_pages_store, lib.kvshm_pages_load, lib.kvshm_pages_finish,
                     lib.kvshm_match):
        function.restype = c.c_int64
    keys = random.Random(3).randbytes(16 * n)
    chosen = random.Random(4).sample(range(rows.rows), 2 * n)
    source, target = ((c.c_uint32 * n)(*some) for some in (chosen[:n], chosen[n:]))
    count, codes, handles = c.c_uint32(n), (c.c_int32 * n)(), (Handle * n)()

    rows.set(1)
    wanted = rows.all_rows()
    arena.check(lib.kvshm_allocate(arena.ptr, count, keys, None, handles, None, None))
    plain = _rate(rows, n * slice_bytes, lambda: _plain(gpu, arena, rows, handles, slice_bytes))
    took = _rate(rows, n * slice_bytes, lambda: lib.kvshm_pages_store(
        arena.ptr, c.byref(table), handles, source, count, c.c_uint32(0), codes))
    right = not any(codes)
    finished = lib.kvshm_pages_finish(arena.ptr, handles, count, c.c_uint32(0), codes)
    wait_for_kernel()
    right = right and finished == n and not any(codes) and all(
        c.string_at(arena.data(handles[i].id), slice_bytes) == wanted[source[i]] for i in range(n))

    rows.set(2)
    wanted_after = rows.all_rows()
    for i in range(n):
        wanted_after[target[i]] = wanted[source[i]]
    ids, lease = (c.c_uint32 * n)(), c.c_uint64()
    found = lib.kvshm_match(arena.ptr, keys, count, ids, c.byref(lease))
    back = _rate(rows, n * slice_bytes, lambda: lib.kvshm_pages_load(
        arena.ptr, c.byref(table), handles, target, count, c.c_uint32(0), codes))
    right = right and found == n and not any(codes) and rows.all_rows() == wanted_after
    arena.check(lib.kvshm_release(arena.ptr, lease))
    # Once more: short pieces go by the kernel now, where there is a compiler.
    arena.check(lib.kvshm_evict(arena.ptr, keys, count))
    arena.check(lib.kvshm_allocate(arena.ptr, count, keys, None, handles, None, None))
    again = _rate(rows, n * slice_bytes, lambda: lib.kvshm_pages_store(
        arena.ptr, c.byref(table), handles, target, count, c.c_uint32(0), codes))
    right = right and not any(codes) and all(
        c.string_at(arena.data(handles[i].id), slice_bytes) == wanted[source[i]] for i in range(n))
    arena.abort(handles)
    return dict(right=right, broken=arena.broken(), store_gb_per_s=took, load_gb_per_s=back,
                again_gb_per_s=again, plain_gb_per_s=plain)


def wait_for_kernel(seconds: float = 20) -> None:
    """Until no thread of this process compiles it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        names = []
        for task in Path("/proc/self/task").iterdir():
            try:
                names.append((task / "comm").read_text(encoding="ascii", errors="replace"))
            except OSError:
                continue
        if "kvshm-kernel\n" not in names:
            return
        time.sleep(0.01)


def _plain(gpu: Gpu, arena: Arena, rows: Rows, handles: Any, slice_bytes: int) -> None:
    """What the same bytes take from one place to another, without layouts."""
    at = c.c_uint64(rows.address)
    for handle in handles:
        gpu.to_host(arena.data(handle.id), at, slice_bytes, c.c_void_p(rows.stream))


def _rate(rows: Rows, nbytes: int, copy: Callable[[], Any]) -> float:
    """GB/s, from the call to the end of the stream."""
    begun = time.monotonic()
    copy()
    rows.wait()
    return round(nbytes / (time.monotonic() - begun) / 1e9, 2)
