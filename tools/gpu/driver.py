# SPDX-License-Identifier: Apache-2.0
"""The few functions of libcuda.so.1 that the check needs, through ctypes."""
from __future__ import annotations

import ctypes as c
import importlib.util
from pathlib import Path
from typing import Any


def find_nvrtc() -> str:
    """The name of the compiler that the library will find, loaded; "" = none."""
    found = importlib.util.find_spec("nvidia")
    here = [path for root in (found.submodule_search_locations or ()) if found
            for path in sorted(Path(root).glob("*/lib/libnvrtc.so.*"))] if found else []
    for name in ("libnvrtc.so.13", "libnvrtc.so.12", *map(str, here)):
        try:
            c.CDLL(name)
            return name
        except OSError:
            continue
    return ""


class NoGpu(Exception):
    pass


class CudaError(Exception):
    pass


class Gpu:
    """The primary context of device 0, current in this thread."""

    def __init__(self) -> None:
        try:
            self.lib: Any = c.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoGpu(f"libcuda.so.1 cannot be loaded ({error}): an NVIDIA driver is wanted") \
                from None
        try:
            self("cuInit", 0)
        except CudaError as error:
            raise NoGpu(f"{error}: an NVIDIA GPU is wanted") from None
        version, name = c.c_int(), c.create_string_buffer(128)
        device, context = c.c_int(), c.c_void_p()
        self("cuDriverGetVersion", c.byref(version))
        self("cuDeviceGet", c.byref(device), 0)
        self("cuDeviceGetName", name, 128, device)
        self("cuDevicePrimaryCtxRetain", c.byref(context), device)
        self("cuCtxPushCurrent_v2", context)
        self.name, self.version = name.value.decode(), version.value

    def __call__(self, function: str, *args: Any) -> None:
        rc = getattr(self.lib, function)(*args)
        if rc:
            text = c.c_char_p()
            self.lib.cuGetErrorString(rc, c.byref(text))
            raise CudaError(f"{function}: {(text.value or b'error').decode()} ({rc})")

    def memory(self, nbytes: int) -> c.c_uint64:
        at = c.c_uint64()
        self("cuMemAlloc_v2", c.byref(at), c.c_size_t(nbytes))
        return at

    def free(self, at: c.c_uint64) -> None:
        self("cuMemFree_v2", at)

    def fill(self, at: c.c_uint64, value: int, nbytes: int) -> None:
        self("cuMemsetD8_v2", at, c.c_ubyte(value), c.c_size_t(nbytes))

    def stream(self) -> c.c_void_p:
        s = c.c_void_p()
        self("cuStreamCreate", c.byref(s), 1)
        return s

    def to_host(self, host: int, at: c.c_uint64, nbytes: int, stream: c.c_void_p) -> None:
        self("cuMemcpyDtoHAsync_v2", c.c_void_p(host), at, c.c_size_t(nbytes), stream)

    def to_device(self, at: c.c_uint64, host: int, nbytes: int, stream: c.c_void_p) -> None:
        self("cuMemcpyHtoDAsync_v2", at, c.c_void_p(host), c.c_size_t(nbytes), stream)

    def wait(self, stream: c.c_void_p) -> None:
        self("cuStreamSynchronize", stream)
