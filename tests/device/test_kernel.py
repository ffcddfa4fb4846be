# SPDX-License-Identifier: Apache-2.0
"""The kernel of cpp/device/kernels, compiled for real where a compiler is found: by nvcc for old
and new devices, by NVRTC as the library does it. What it does is cpp/tests/cuda_kernel_test's."""
import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[2] / "cpp" / "device" / "kernels"
CAPABILITIES = ("75", "80", "90", "100", "120")


@pytest.fixture
def text():
    return (KERNELS / "work.h").read_text() + (KERNELS / "rows.cu").read_text()


def test_the_library_carries_this_text(text):
    from kvshm.paths import include_dir

    library = next(Path(include_dir()).parent.glob("lib*/libkvshm.so.0"))
    assert text.encode() in library.read_bytes()


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_nvcc_takes_it(text, tmp_path, capability):
    nvcc = shutil.which("nvcc")
    if not nvcc:
        pytest.skip("no nvcc on this host")
    known = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, timeout=60)
    if f"compute_{capability}" not in known.stdout.split():
        pytest.skip(f"this nvcc knows no compute_{capability}")
    source = tmp_path / "rows.cu"
    source.write_text(text)
    done = subprocess.run(
        [nvcc, f"-arch=sm_{capability}", "-cubin", "-Werror", "all-warnings", "-Xptxas",
         "-v,-warn-spills", "-o", tmp_path / "rows.cubin", source],
        capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert " 0 bytes spill stores" in done.stderr and "0 bytes stack frame" in done.stderr, (
        "the argument must not be copied to the stack of each thread:\n" + done.stderr)
    assert (tmp_path / "rows.cubin").stat().st_size > 1000


def nvrtc():
    from kvshm.device.streams import find_nvrtc

    find_nvrtc()
    for name in ("libnvrtc.so.13", "libnvrtc.so.12"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def test_nvrtc_takes_it(text):
    lib = nvrtc()
    if lib is None:
        pytest.skip("no libnvrtc.so.13 or .12 on this host (torch for CUDA brings one)")
    major, minor = ctypes.c_int(), ctypes.c_int()
    assert lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)) == 0
    for capability in ("75", "90"):
        program = ctypes.c_void_p()
        assert lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"rows.cu", 0, None,
                                      None) == 0
        options = (ctypes.c_char_p * 1)(f"--gpu-architecture=compute_{capability}".encode())
        rc = lib.nvrtcCompileProgram(program, 1, options)
        size = ctypes.c_size_t()
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        said = ctypes.create_string_buffer(size.value or 1)
        lib.nvrtcGetProgramLog(program, said)
        assert rc == 0, said.value.decode()
        lib.nvrtcGetPTXSize(program, ctypes.byref(size))
        ptx = ctypes.create_string_buffer(size.value)
        assert lib.nvrtcGetPTX(program, ptx) == 0
        assert re.search(rf"\.target sm_{capability}", ptx.value.decode())
        assert ".entry kvshm_rows(" in ptx.value.decode(), "by the name that the library asks for"
        assert lib.nvrtcDestroyProgram(ctypes.byref(program)) == 0
    print(f"NVRTC {major.value}.{minor.value}", file=sys.stderr)
