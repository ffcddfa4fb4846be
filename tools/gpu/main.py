# SPDX-License-Identifier: Apache-2.0
"""Registration with a real GPU, copies of paged KV, loads from a disk, what copies do after a
SIGKILL. Prints JSON.

  tools/gpu_check                 everything, in about five minutes
  tools/gpu_check --quick         small arenas, few kills

Needs Python (nothing installed), an NVIDIA driver, and libkvshm.so.0: of this checkout's build/, or
--lib; where neither is there, it is built with CMake. Exit status: 0 all is right, 1 something is
wrong, 2 usage, 3 no GPU here, 4 no library, 5 this host cannot hold an arena.
"""
from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import gds, late, paged, registration
from .driver import CudaError, Gpu, NoGpu
from .library import ROOT, KvshmError, find

FINE, WRONG, NO_GPU, NO_LIBRARY, NO_HOST = 0, 1, 3, 4, 5


def build() -> Path | None:
    """What went wrong is on stderr."""
    folder = ROOT / "build" / "gpu"
    for command in (["cmake", "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"],
                    ["cmake", "--build", str(folder), "-j"]):
        try:
            subprocess.run(command, check=True, stdout=sys.stderr, timeout=900)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"gpu_check: {error}", file=sys.stderr)
            return None
    return find(None)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", help="libkvshm.so.0")
    parser.add_argument("--quick", action="store_true", help="small arenas, few kills")
    parser.add_argument("--kills", type=int, help="rounds of the SIGKILL test")
    parser.add_argument("--victim", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.victim:
        late.victim(*args.victim)
    found: dict[str, Any] = dict(schema=1, kind="gpu_check", host=platform.platform())
    code = FINE
    try:
        gpu = Gpu()
        found |= dict(gpu=gpu.name, cuda=gpu.version)
    except NoGpu as error:
        return say(found | dict(verdict="no GPU", wanted="an NVIDIA GPU with its driver, and "
                                "libkvshm.so.0", why=str(error)), NO_GPU)
    library = find(args.lib) or build()
    if library is None or not library.exists():
        return say(found | dict(verdict="no library", wanted="libkvshm.so.0 (--lib, or a build of "
                                "this checkout)"), NO_LIBRARY)
    try:
        code = run(found, gpu, library, args)
    except KvshmError as error:
        return say(found | dict(verdict="this host cannot hold an arena", why=str(error)), NO_HOST)
    except (CudaError, RuntimeError) as error:
        return say(found | dict(verdict="wrong", why=str(error)), WRONG)
    return say(found | dict(verdict="right" if code == FINE else "wrong"), code)


def run(found: dict[str, Any], gpu: Gpu, library: Path, args: argparse.Namespace) -> int:
    names = (f"gpu-check-{os.getpid()}-{n}" for n in itertools.count())
    sizes = [(64, 16), (64, 1024)] if args.quick else [
        (256, 64), (1024, 64), (1024, 1024), (8192, 64), (8192, 1024), (8192, 8192)]
    found["registration"] = [
        registration.timed(gpu, library, next(names), size, piece) for size, piece in sizes]
    beside = found["beside_others"] = registration.beside_others(gpu, library, next(names))
    found["paged"] = [
        paged.one_layout(gpu, library, next(names), order,
                         paged.QUICK if args.quick else paged.FULL) for order in paged.ORDERS]
    found["gds"] = [gds.one_path(gpu, library, next(names), mode, 16 if args.quick else 256)
                    for mode in (gds.AUTO, gds.OFF)]
    kills = args.kills if args.kills is not None else 3 if args.quick else 20
    chance = random.Random(1)
    rounds = [late.one_round(library, next(names), chance.uniform(0, 0.3)) for _ in range(kills)]
    found["kills"] = rounds
    found["last_write_ms_max"] = max((r["last_write_ms"] or 0 for r in rounds), default=None)
    found["cleared_ms_min"] = min((r["cleared_ms"] for r in rounds), default=None)
    right = all(r["right"] and r["all"] and r["again"] for r in found["registration"])
    right = right and beside["all_foreign"] and beside["all_but_one_block"]
    right = right and not beside["left_pending"]
    right = right and all(r["right"] and not r["broken"] for r in found["paged"])
    right = right and all(r["right"] and not r["broken"] for r in found["gds"])
    safe = not any(r["written_after_clear"] or r["broken"] for r in rounds)
    return FINE if right and safe else WRONG


def say(found: dict[str, Any], code: int) -> int:
    print(json.dumps(found, indent=1))
    return code
