# SPDX-License-Identifier: Apache-2.0
"""Registration with a real GPU, copies of paged KV, loads from a disk, what copies do after a
SIGKILL. Prints JSON; what has been found is also written to --out, part by part, as it comes.

  tools/gpu_check                 everything, in five minutes at most
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
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from . import gds, late, paged, registration, two
from .driver import CudaError, Gpu, NoGpu, find_nvrtc
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
    parser.add_argument("--out", type=Path, metavar="FILE", help="partial results, too")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS",
                        help="what has not begun by then is left out, and named (default 300)")
    parser.add_argument("--victim", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--partner", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.victim:
        late.victim(*args.victim)
    if args.partner:
        two.partner(*args.partner)
        return FINE
    found = Found(args.out, args.limit, schema=1, kind="gpu_check", host=platform.platform())
    code = FINE
    try:
        gpu = Gpu()
        found.update(gpu=gpu.name, cuda=gpu.version)
    except NoGpu as error:
        return say(found, NO_GPU, verdict="no GPU", why=str(error),
                   wanted="an NVIDIA GPU with its driver, and libkvshm.so.0")
    library = find(args.lib) or build()
    if library is None or not library.exists():
        return say(found, NO_LIBRARY, verdict="no library",
                   wanted="libkvshm.so.0 (--lib, or a build of this checkout)")
    try:
        code = run(found, gpu, library, args)
    except KvshmError as error:
        return say(found, NO_HOST, verdict="this host cannot hold an arena", why=str(error))
    except (CudaError, RuntimeError) as error:
        return say(found, WRONG, verdict="wrong", why=str(error))
    return say(found, code, verdict="right" if code == FINE else "wrong")


class Found(dict[str, Any]):
    """What has been found so far: kept in a file, for whoever ends this or loses the machine."""

    def __init__(self, out: Path | None, limit: float, **values: Any) -> None:
        super().__init__(**values)
        self.out, self.end = out, time.monotonic() + limit
        self.keep()

    def keep(self) -> None:
        if self.out is not None:
            part = self.out.with_name(self.out.name + ".part")
            part.write_text(json.dumps(self, indent=1) + "\n", encoding="utf-8")
            part.replace(self.out)

    def each(self, name: str, steps: Iterable[Callable[[], dict[str, Any]]]) -> list[Any]:
        """The results of these steps, kept one by one; counted those that time does not allow."""
        results: list[Any] = self.setdefault(name, [])
        for step in steps:
            if time.monotonic() > self.end:
                self["left_out"] = self.get("left_out", {})
                self["left_out"][name] = self["left_out"].get(name, 0) + 1
                continue
            results.append(step())
            self.keep()
        return results


def run(found: Found, gpu: Gpu, library: Path, args: argparse.Namespace) -> int:
    names = (f"gpu-check-{os.getpid()}-{n}" for n in itertools.count())
    sizes = [(64, 16), (64, 1024)] if args.quick else [
        (256, 64), (1024, 64), (1024, 1024), (8192, 64), (8192, 1024)]
    layouts = paged.QUICK if args.quick else paged.FULL
    chance = random.Random(1)
    kills = args.kills if args.kills is not None else 3 if args.quick else 20
    found["nvrtc"] = find_nvrtc()
    # The kills, which nothing but a GPU can answer, before what takes long.
    registered = found.each("registration", (partial(
        registration.timed, gpu, library, next(names), *some) for some in sizes[:2]))
    beside = found.each("beside_others", [
        lambda: registration.beside_others(gpu, library, next(names))])
    together = found.each("two_processes", [
        lambda: two.at_once(gpu, library, next(names), 32 if args.quick else 1024)])
    copied = found.each("paged", (partial(
        paged.one_layout, gpu, library, next(names), order, layouts) for order in paged.ORDERS))
    rounds = found.each("kills", (partial(
        late.one_round, library, next(names), chance.uniform(0, 0.3)) for _ in range(kills)))
    found["last_write_ms_max"] = max((r["last_write_ms"] or 0 for r in rounds), default=None)
    found["cleared_ms_min"] = min((r["cleared_ms"] for r in rounds), default=None)
    loaded = found.each("gds", (partial(
        gds.one_path, gpu, library, next(names), mode, 16 if args.quick else 256)
        for mode in (gds.AUTO, gds.OFF)))
    registered = found.each("registration", (partial(
        registration.timed, gpu, library, next(names), *some) for some in sizes[2:]))
    right = all(r["right"] and r["all"] and r["again"] for r in registered)
    right = right and all(r["all_foreign"] and r["all_but_one_block"] and not r["left_pending"]
                          for r in beside)
    right = right and all(r["all"] and r["right"] and r["ended"] and not r["foreign"]
                          and not r["broken"] for r in together)
    right = right and all(r["right"] and not r["broken"] for r in (*copied, *loaded))
    safe = not any(r["written_after_clear"] or r["broken"] for r in rounds)
    return FINE if right and safe else WRONG


def say(found: Found, code: int, **more: Any) -> int:
    found.update(more)
    if code == FINE and "left_out" in found:
        found["verdict"] = "right, as far as it came"
    found.keep()
    print(json.dumps(found, indent=1))
    return code
