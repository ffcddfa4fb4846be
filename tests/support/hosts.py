# SPDX-License-Identifier: Apache-2.0
"""Worlds for one process: a small mount of its own, a pid namespace, a filter on system calls."""
from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest

UNSHARE = ["unshare", "--mount", "--propagation", "private"]


@functools.cache
def _trouble(*command: str) -> str:
    """What the command complains about, "" if it works."""
    if os.geteuid():
        return "needs root"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except FileNotFoundError as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or "fails"


def need(*command: str) -> None:
    trouble = _trouble(*command)
    if trouble:
        pytest.skip(f"{' '.join(command)}: {trouble}")


def on_mount(folder: Path | str, options: str, kind: str = "tmpfs") -> list[str]:
    """For under=: a process that sees a file system of its own at `folder`."""
    need(*UNSHARE, "sh", "-c", f"mount -t {kind} -o {options} none /mnt")
    return [*UNSHARE, "sh", "-c", f'mount -t {kind} -o {options} none "$0" && exec "$@"',
            str(folder)]


def pid_namespace() -> list[str]:
    """For under=: a process that is number 1. What is killed is its starter, and it with that."""
    need("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "true")
    return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def refusing(numbers: list[int], error: int) -> str:
    """Statements for a player: from now on these system calls fail with `error`."""
    return f"""
        import ctypes, struct
        _numbers, _error = {numbers!r}, {error}
        _code = [(0x20, 0, 0, 4), (0x15, 1, 0, 0xC000003E), (0x06, 0, 0, 0x7FFF0000),
                 (0x20, 0, 0, 0)]                                    # x86-64 only, its number
        for _i, _n in enumerate(_numbers):
            _code.append((0x15, len(_numbers) - _i, 0, _n))          # to the last line
        _code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | _error)]
        _body = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *_l) for _l in _code))
        _program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(_code),
                                                           ctypes.addressof(_body)))
        _libc = ctypes.CDLL(None, use_errno=True)
        assert _libc.prctl(38, 1, 0, 0, 0) == 0
        assert _libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(_program)), 0, 0) == 0
    """
