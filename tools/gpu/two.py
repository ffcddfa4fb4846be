# SPDX-License-Identifier: Apache-2.0
"""One arena registered by two processes at a time: each copies, and goes on when the other ends."""
from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .driver import Gpu
from .library import REGISTERED, ROOT, Arena
from .registration import copies

MIB = 1 << 20


def partner(library: str, name: str) -> None:
    """Registers, copies for each line of its input, and undoes it at the end of that."""
    gpu, arena = Gpu(), Arena(Path(library), name)
    begun = time.monotonic()
    got = arena.register(piece=64 * MIB)
    took = time.monotonic() - begun
    print(json.dumps(dict(all=got.state == REGISTERED, foreign=got.bytes_foreign,
                          register_ms=round(1000 * took, 1))), flush=True)
    for _ in sys.stdin:
        print(json.dumps(copies(gpu, arena)), flush=True)
    arena.unregister()
    arena.close()


def at_once(gpu: Gpu, library: Path, name: str, mebibytes: int) -> dict[str, Any]:
    arena = Arena(library, name, blocks=max(16, mebibytes // 2), block_bytes=2 * MIB)
    other = subprocess.Popen(
        [sys.executable, str(ROOT / "tools" / "gpu_check"), "--partner", str(library), name],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin is not None and other.stdout is not None
    try:
        begun = time.monotonic()
        mine = arena.register(piece=64 * MIB)
        took = time.monotonic() - begun
        theirs = json.loads(other.stdout.readline() or "null")
        if theirs is None:
            raise RuntimeError(f"the other process ended with {other.wait(30)}")
        found = dict(all=mine.state == REGISTERED and theirs["all"],
                     foreign=mine.bytes_foreign + theirs["foreign"],
                     register_ms=[round(1000 * took, 1), theirs["register_ms"]])
        print("go", file=other.stdin, flush=True)
        ours, its = copies(gpu, arena), json.loads(other.stdout.readline())
        found["right"] = ours["right"] and its["right"]
        found["to_host_gb_per_s"] = [ours["to_host_gb_per_s"], its["to_host_gb_per_s"]]
        other.stdin.close()
        found["ended"] = other.wait(60) == 0
        after = copies(gpu, arena)  # the other's undoing was of its own registration
        found["right"] = found["right"] and after["right"]
        arena.unregister()
        found["broken"] = arena.broken()
        arena.close()
        return found
    finally:
        other.kill()
        other.wait(30)
        arena.remove()
