# SPDX-License-Identifier: Apache-2.0
"""tools/soak tiers: engines whose memory is too small for what they are asked, a disk that is not,
and random kills."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import kvshm

from ..benchmarks import machine
from ..benchmarks.p5_disk import default_folder, file_system
from ..environments import Absent
from .crew import Say, Tally, soak
from .engines import BuiltIn, Gone, Site, Vllm, answers_of
from .watch import FDS, MIB, THREADS

QUIET_LIMIT = 20.0  # seconds, until the last writes and the dead have let go of all
# Of all seconds; what vLLM takes to start is beside them.
SHARES = {"built-in": 0.4, "layers": 0.2, "vllm": 0.4}
WORKERS = {"built-in": 3, "layers": 2, "vllm": 2}
EVERY = {"built-in": 6.0, "layers": 6.0, "vllm": 45.0}  # seconds from kill to kill; a start of vLLM
MAKERS: dict[str, Callable[..., Site]] = {
    "built-in": BuiltIn, "layers": partial(BuiltIn, groups=2), "vllm": Vllm}


def run(kind: str, seconds: float, seed: int, say: Say, workers: int = 0, requests: int = 0,
        every: float = 0.0, folder: Path | None = None) -> dict[str, Any]:
    """One kind of engine: its part of the document. Raises Absent, Gone if an engine does not
    start, kvshm.Error."""
    with ExitStack() as stack:
        where = folder or default_folder()
        scratch = Path(stack.enter_context(
            tempfile.TemporaryDirectory(prefix="kvshm-soak-", dir=where)))
        site = MAKERS[kind](scratch, seed, requests=requests)
        stack.callback(site.close)
        wanted = answers_of(site, say)
        say(f"{site.what}: {len(site.requests)} prompts of {site.working_set} blocks on an arena "
            f"of {site.blocks}, {seconds:.0f} s")
        began = time.monotonic()
        tally, members = soak(site, wanted, workers or WORKERS[kind], seconds,
                              every or EVERY[kind], seed, say)
        took = time.monotonic() - began
        for member in members:
            stack.callback(member.close)
        arena = stack.enter_context(site.attach())
        for member in members:
            member.close()
        left = _quiet(arena, site.name)
        stats = arena.stats()
        file_bytes = sum(path.stat().st_size for path in scratch.iterdir())
    return {
        "engine": site.what, "seconds": round(took, 1), "seed": seed,
        "requests": len(site.requests), "working_set": site.working_set, "blocks": site.blocks,
        "file_system": file_system(where), "file_mib": file_bytes >> 20, **counted(tally),
        "loaded_blocks": stats.tier_loaded_total, "stored_blocks": stats.tier_stored_total,
        "evicted_blocks": stats.evicted_total, "damaged": stats.tier_damaged_total,
        "left": left,
    }


def counted(tally: Tally) -> dict[str, Any]:
    grown = [watch.grown() for watch in tally.watches if watch.samples > 1]
    return {
        "answers": tally.answers, "wrong": tally.wrong, "kills": tally.kills,
        "cut_off": tally.cut_off, "failed": tally.failed,
        "prompt_tokens": tally.prompt_tokens, "found_tokens": tally.found_tokens,
        "lives": len(tally.watches), "watched_lives": len(grown),
        "unsteady": [watch.grown() for watch in tally.watches if not watch.steady()],
        "most_grown": {name: max((one[name] for one in grown), default=0)
                       for name in ("fds", "threads", "private_mib")},
    }


def _quiet(arena: kvshm.Arena, name: str) -> list[str]:
    """What is still not as it must be when all workers have ended."""
    end = time.monotonic() + QUIET_LIMIT
    while True:
        left = [str(broken) for broken in arena.is_valid()]
        stats = arena.stats()
        left += [f"{stats[field]} {field}" for field in (
            "blocks_held", "blocks_filling", "blocks_evicting") if stats[field]]
        left += [f"a slot of pid {one.pid}" for one in arena.processes() if one.label != "soak"
                 and one.label != "demo"]
        if not left:
            for one in (name, f"{name}-g3"):
                done = subprocess.run(
                    [sys.executable, "-m", "kvshm.tools.cli", "verify", one],
                    capture_output=True, text=True, timeout=120)
                if done.returncode:
                    left.append(f"kvshm verify {one}: {(done.stdout + done.stderr).strip()}")
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.2)


def holds(part: dict[str, Any]) -> bool:
    """Whether everything is as it must be, and the load was one that shows it."""
    return (not any(part[name] for name in ("wrong", "failed", "left", "unsteady", "damaged"))
            and part["answers"] > 0 and part["kills"] > 0
            and part["loaded_blocks"] > 0 and part["evicted_blocks"] > 0
            and part["found_tokens"] and all(part["found_tokens"].values())
            and 4 * part["blocks"] <= part["working_set"])


def table(part: dict[str, Any]) -> str:
    rows = [f"{name.replace('_', ' '):20}{value:>14,}" for name, value in part.items()
            if isinstance(value, (int, float))]
    rows += [f"{name.replace('_', ' '):20}{len(part[name]):>14,}" for name in (
        "wrong", "failed", "left", "unsteady")]
    rows += [f"{f'found tokens, {how}':20}{found:>14,}" for how, found in
             part["found_tokens"].items()]
    grown = part["most_grown"]
    rows.append(f"{'grew by at most':20}{grown['fds']:>4} descriptors, {grown['threads']} threads, "
                f"{grown['private_mib']:.0f} MiB")
    for name in ("wrong", "failed", "left", "unsteady"):
        rows += [f"  {name}: {one}" for one in part[name][:5]]
    return "\n".join([f"{part['engine']}: {'it holds' if holds(part) else 'IT DOES NOT HOLD'}",
                      *rows])


PAGE = """# Soak: engines over memory that is too small and a disk that is not

Written by `tools/soak tiers --out` on {day}: {cpu}, {cpus} CPUs, Linux {kernel},
load {load:.1f}, commit {commit}, Python {python}.

Workers are asked all the time, killed (SIGKILL) at random and replaced. Memory holds a quarter of
what all prompts fill, the file on disk all of it. Every answer is compared with that of an engine
without kvshm; the built-in engine's bit by bit. `left` is what was not as it must be when all had
ended: blocks held or being filled, slots of processes, invariants, `kvshm verify` of the arena and
of the tier's image. `unsteady` are lives in which descriptors (by more than {fds}), threads
({threads}) or private memory ({mib} MiB) grew from the sixth answer to the last.

```
{parts}
```
"""


def page(document: dict[str, Any]) -> str:
    parts = [*map(table, document["parts"]), *document["missing"]]
    return PAGE.format(day=f"{date.today():%-d %B %Y}", fds=FDS, threads=THREADS, mib=MIB,
                       parts="\n\n".join(parts), **document["machine"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/soak tiers",
        description="The demo's engine, in place, by copies and by layer groups, and vLLM if it "
                    "can be had, over an arena of a quarter and a file of all that they are asked, "
                    "with random kills. Exit status 0 if every answer was right and nothing "
                    "leaked, 1 if not, 2 if no engine could be started.")
    parser.add_argument("--seconds", type=float, default=600.0, metavar="N",
                        help="of work, in all; starts are beside it (default 600)")
    parser.add_argument("--only", choices=tuple(SHARES), action="append",
                        help="this kind of engine; may be given again")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="of the file, on a disk")
    parser.add_argument("--json", action="store_true", help="one JSON document, no table")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help="also keep the table as this page, and beside it the document")
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    kinds = args.only or list(SHARES)
    whole = sum(SHARES[kind] for kind in kinds)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    parts, missing = [], []
    for kind in kinds:
        try:
            parts.append(run(kind, args.seconds * SHARES[kind] / whole, args.seed, say,
                             folder=args.dir))
        except Absent as error:
            missing.append(f"{kind}: {error}")
        except (Gone, kvshm.Error) as error:
            say(f"tools/soak tiers: {kind}: {error}")
            return 2
    document = {"machine": machine.facts(args.root), "missing": missing, "parts": parts,
                "holds": bool(parts) and all(map(holds, parts))}
    if args.out is not None:
        args.out.write_text(page(document), encoding="utf-8")
        args.out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n",
                                                 encoding="utf-8")
    print(json.dumps(document) if args.json else "\n\n".join([*map(table, parts), *missing]))
    if not parts:
        return 2
    return 0 if document["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
