# SPDX-License-Identifier: Apache-2.0
"""libkvshm through ctypes: any Python will do, with nothing installed on the GPU's machine."""
from __future__ import annotations

import ctypes as c
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Options(c.Structure):
    _fields_ = [("size", c.c_size_t), ("bytes", c.c_uint64), ("block_bytes", c.c_uint64),
                ("blocks", c.c_uint64), ("identity", c.c_void_p), ("dir", c.c_char_p),
                ("label", c.c_char_p), ("group", c.c_char_p), ("timeout_ms", c.c_uint32),
                ("flags", c.c_uint32), ("pin", c.c_uint32), ("huge", c.c_uint32),
                ("numa", c.c_int32), ("reap_ms", c.c_uint32), ("reserved", c.c_uint64 * 8)]


class DeviceOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("backend", c.c_void_p), ("piece_bytes", c.c_uint64),
                ("mode", c.c_uint32), ("timeout_ms", c.c_uint32), ("drain_ms", c.c_uint32),
                ("device", c.c_int32)]


class Device(c.Structure):
    _fields_ = [("size", c.c_size_t), ("state", c.c_uint32), ("references", c.c_uint32),
                ("bytes", c.c_uint64), ("bytes_registered", c.c_uint64),
                ("bytes_foreign", c.c_uint64), ("pieces", c.c_uint32),
                ("piece_blocks", c.c_uint32), ("stuck", c.c_uint32), ("code", c.c_int32),
                ("backend", c.c_char * 16), ("reason", c.c_char * 192)]


class Process(c.Structure):
    _fields_ = [("size", c.c_size_t), *((n, c.c_uint32) for n in (
        "slot", "used", "alive", "device_busy", "draining", "self")), ("pid", c.c_int32),
        ("uid", c.c_uint32), ("start_time", c.c_uint64), ("attached_at", c.c_uint64),
        ("pid_ns", c.c_uint64), ("label", c.c_char * 64), ("device_bytes", c.c_uint64),
        ("device_state", c.c_uint32), ("device_memory", c.c_uint32),
        ("with_identity", c.c_uint32), ("epoch", c.c_uint32)]


class Handle(c.Structure):
    _fields_ = [("seq", c.c_uint64), ("id", c.c_uint32), ("zero", c.c_uint32)]


REGISTERED, OFF, NO_HELPER, SLOTS = 2, 2, 1, 48


class KvshmError(Exception):
    pass


def find(given: str | None) -> Path | None:
    """The library: as given, or the newest that was built below build/."""
    if given:
        return Path(given)
    built = sorted(ROOT.glob("build/**/libkvshm.so.0"), key=lambda p: p.stat().st_mtime)
    return built[-1] if built else None


class Arena:
    def __init__(self, path: Path, name: str, *, blocks: int = 0, block_bytes: int = 0) -> None:
        lib: Any = c.CDLL(str(path))
        lib.kvshm_last_error.restype = lib.kvshm_strerror.restype = c.c_char_p
        lib.kvshm_block_data.restype = c.c_void_p
        self.lib, self.ptr, self.name = lib, c.c_void_p(), name
        o = Options(size=c.sizeof(Options), blocks=blocks, block_bytes=block_bytes, pin=OFF,
                    numa=-1, flags=NO_HELPER, timeout_ms=120000, label=b"gpu_check")
        how = lib.kvshm_create if blocks else lib.kvshm_attach
        self.check(how(c.byref(self.ptr), name.encode(), c.byref(o)))

    def check(self, rc: int) -> int:
        if rc < 0:
            raise KvshmError(f"{self.lib.kvshm_strerror(rc).decode()}: "
                             f"{self.lib.kvshm_last_error().decode()}")
        return rc

    def data(self, block: int = 0) -> int:
        return int(self.lib.kvshm_block_data(self.ptr, c.c_uint32(block)))

    def allocate(self, n: int) -> Any:
        handles = (Handle * n)()
        self.check(self.lib.kvshm_allocate(self.ptr, c.c_uint32(n), None, None, handles, None,
                                           None))
        return handles

    def abort(self, handles: Any) -> None:
        self.check(self.lib.kvshm_abort(self.ptr, handles, c.c_uint32(len(handles))))

    def register(self, *, piece: int, require: bool = True, drain_ms: int = 2000) -> Device:
        o = DeviceOptions(size=c.sizeof(DeviceOptions), piece_bytes=piece, mode=int(require),
                          timeout_ms=300000, drain_ms=drain_ms, device=-1)
        self.check(self.lib.kvshm_register_device(self.ptr, c.byref(o)))
        return self.device()

    def unregister(self) -> None:
        self.check(self.lib.kvshm_unregister_device(self.ptr, c.c_uint32(300000)))

    def device(self) -> Device:
        d = Device(size=c.sizeof(Device))
        self.check(self.lib.kvshm_get_device(self.ptr, c.byref(d)))
        return d

    def process(self, slot: int) -> Process:
        p = Process(size=c.sizeof(Process))
        self.check(self.lib.kvshm_get_process(self.ptr, c.c_uint32(slot), c.byref(p)))
        return p

    def slot_of(self, pid: int) -> int | None:
        return next((s for s in range(SLOTS)
                     if (p := self.process(s)).used and p.pid == pid), None)

    def reap(self) -> None:
        self.check(self.lib.kvshm_reap(self.ptr, None))

    def broken(self) -> int:
        return int(self.check(self.lib.kvshm_is_valid(self.ptr, None, None)))

    def close(self) -> None:
        self.check(self.lib.kvshm_close(self.ptr, c.c_uint32(300000)))

    def remove(self) -> None:
        self.lib.kvshm_remove(self.name.encode(), None, 1)
