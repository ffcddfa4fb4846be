# SPDX-License-Identifier: Apache-2.0
"""The mock device of tests/device/native as a shared library, and its record through ctypes.

Also run inside workers: ``mock = Mock(path)``; ``mock.address`` is what register_device() takes.
"""
from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1] / "device" / "native"
KERNELS = NATIVE.parents[2] / "cpp" / "device" / "kernels"
SETTINGS = ("cap bytes_per_second unregister_ms fail_from fail_only gone broken blind "
            "block_bytes").split()
SEEN = ("registers refusals already unregisters ranges bytes foreign_ranges pending leaked unknown "
        "foreign_undone straddles unaligned unmapped largest finished busy").split()


class _Setting(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in SETTINGS]


class _Seen(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in SEEN]


def build(folder: Path, *, cuda: bool = False, nvrtc: bool = False) -> Path:
    """libmock_pin.so, or the same as a CUDA driver, libcuda.so.1, with libcufile.so.0; and with a
    compiler, so that short pieces are not copied but moved by a kernel: libnvrtc.so.13."""
    from kvshm.paths import include_dir

    out = folder / ("libcuda.so.1" if cuda else "libmock_pin.so")
    sources = [NATIVE / "mock_pin.c", *([NATIVE / "fake_cuda.c"] if cuda else [])]
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-g",
                    "-fPIC", "-shared", "-pthread", f"-I{include_dir()}", f"-I{KERNELS}", *sources,
                    "-o", out], check=True, timeout=60)
    beside = {"libcufile.so.0": "fake_cufile.c"} if cuda else {}
    beside |= {"libnvrtc.so.13": "fake_nvrtc.c"} if nvrtc else {}
    for name, source in beside.items():
        subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1",
                        "-g", "-fPIC", "-shared", NATIVE / source, "-o", folder / name],
                       check=True, timeout=60)
    return out


def run_cases(cases: Path, folder: Path, least: int) -> None:
    """These tests in a process of their own, which finds the CUDA driver that is built in `folder`:
    all pass, so many at least, and none is skipped."""
    driver = build(folder, cuda=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", cases],
        capture_output=True, text=True, timeout=110, cwd=NATIVE.parents[2],
        env={**os.environ, "LD_LIBRARY_PATH": str(driver.parent)})
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    passed = re.search(r"^(\d+) passed in", done.stdout, re.MULTILINE)  # and none was skipped
    assert passed and int(passed[1]) >= least


class Mock:
    def __init__(self, path: str | Path) -> None:
        self._lib = ctypes.CDLL(str(path))
        self._lib.mock_set.restype = ctypes.POINTER(_Setting)
        self._lib.mock_look.restype = _Seen
        self.address = ctypes.addressof(ctypes.c_char.in_dll(self._lib, "mock_backend"))

    def set(self, **values: int) -> None:
        for name, value in values.items():
            assert name in SETTINGS
            setattr(self._lib.mock_set().contents, name, value)

    def seen(self) -> dict[str, int]:
        found = self._lib.mock_look()
        return {name: getattr(found, name) for name in SEEN}

    def watch(self, arena: object) -> None:
        """Look for blocks of this arena that straddle two pieces."""
        self._lib.mock_blocks(
            ctypes.c_void_p(self.data(arena)),
            ctypes.c_uint64(arena.blocks * arena.block_bytes),  # type: ignore[attr-defined]
            ctypes.c_uint64(arena.block_bytes))  # type: ignore[attr-defined]

    def foreign(self, address: int, nbytes: int) -> None:
        self._lib.mock_foreign(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))

    @staticmethod
    def data(arena: object) -> int:
        """Where block 0 lies in this process."""
        with arena.allocate(arena.blocks) as fill:  # type: ignore[attr-defined]
            first = list(fill.ids).index(0)
            with fill.view(first) as view:
                return ctypes.addressof(ctypes.c_char.from_buffer(view))

    def untidy(self) -> dict[str, int]:
        """What must not be, after all is over."""
        wrong = ("ranges pending leaked unknown foreign_undone straddles unaligned unmapped "
                 "busy").split()
        return {name: n for name, n in self.seen().items() if name in wrong and n}
