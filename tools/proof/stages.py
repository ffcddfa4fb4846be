# SPDX-License-Identifier: Apache-2.0
"""What is run, one after the other: each stage gives the facts that the verdict goes by."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .child import StageError, document, run

Say = Callable[[str], None]
Facts = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    kills: int = 100_000
    fuzz_executions: int = 10_000_000
    control_seconds: int = 15
    torture_seconds: int = 1200  # limits: together the stages end within 40 minutes
    fuzz_seconds: int = 1100
    brief: bool = False


QUICK = Scale(kills=2000, fuzz_executions=20_000, control_seconds=5, torture_seconds=100,
              fuzz_seconds=60, brief=True)


@dataclass(frozen=True)
class Work:
    root: Path
    build: Path
    scale: Scale

    def program(self, *parts: str) -> Path:
        return self.build.joinpath("cpp", "tests", *parts)


def build(work: Work, say: Say) -> Facts:
    """The programs that the other stages run, unless they were given."""
    launcher: list[str | Path] = []
    if shutil.which("ccache"):
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache", "-DCMAKE_C_COMPILER_LAUNCHER=ccache"]
    commands: list[list[str | Path]] = [
        ["cmake", "-S", work.root, "-B", work.build, "-G", "Ninja", "-DKVSHM_TESTS=ON", *launcher],
        ["cmake", "--build", work.build, "--target", "kvshm_torture", "sweep"]]
    for command in commands:
        status, out, tail = run(command, 900, say, work.root)
        if status:
            raise StageError("the build failed: " + " / ".join([*out.splitlines(), *tail][-12:]))
    return {"built": True}


def models(work: Work, say: Say) -> Facts:
    """Exhaustive searches of the protocol's models; their controls must fail."""
    command: list[str | Path] = [sys.executable, work.root / "tests" / "model" / "run.py",
                                 "--json"]
    return document(command, 1500, say, work.root)


def sweep(work: Work, say: Say) -> Facts:
    """Every operation killed at every step of it."""
    brief = ["--short"] if work.scale.brief else []
    return document([work.program("sweep"), *brief], 900, say)


def torture(work: Work, say: Say) -> Facts:
    """Random kills of many workers."""
    scale = work.scale
    return document([work.program("kvshm_torture"), "--kills", str(scale.kills), "--seconds",
                     str(scale.torture_seconds)], scale.torture_seconds + 120, say)


def controls(work: Work, say: Say) -> Facts:
    """Each wrong step that the tests' build can take, until the torture or the sweep sees it."""
    found: Facts = {}
    known = _controls_of(work, say)
    for number, (name, control) in enumerate(known):
        say(f"[{number}/{len(known)}] {name}")
        found[name] = {"control": control, **_catch(work, name)}
    return {"controls": found}


def _controls_of(work: Work, say: Say) -> list[tuple[str, str]]:
    status, out, _ = run([work.program("kvshm_torture"), "--list"], 60, say)
    lines = re.findall(r"^control +(\S+) +(.+)$", out, re.M)
    if status or not lines:
        raise StageError("the torture names no controls")
    return [(name, text.strip()) for name, text in lines]


def _catch(work: Work, name: str) -> Facts:
    def quiet(line: str) -> None:
        del line

    seconds = work.scale.control_seconds
    tries: list[tuple[str, list[str | Path], int]] = [
        ("torture", [work.program("kvshm_torture"), "--control", name, "--quiet", "--kills",
                     "1000000", "--seconds", str(seconds)], seconds + 90),
        ("sweep", [work.program("sweep"), "--short", "--break", name], 120)]
    said: list[str] = []
    for by, command, limit in tries:
        try:
            got = document(command, limit, quiet)
        except StageError as e:  # hung, or ended by what it was told to break: no verdict
            said.append(str(e))
            continue
        if got["violations"]:
            texts = got.get("violation_texts") or got.get("first_violations") or [""]
            return {"caught_by": by, "kills": got["kills"], "saw": texts[0][:300]}
    return {"caught_by": None, "kills": 0, "saw": "; ".join(said)}


def fuzz(work: Work, say: Say) -> Facts:
    """Damaged arenas and arguments, under the sanitizers."""
    scale = work.scale
    return document([sys.executable, work.root / "tools" / "fuzz", "--json", "--executions",
                     str(scale.fuzz_executions), "--seconds", str(scale.fuzz_seconds)],
                    scale.fuzz_seconds + 900, say, work.root)


@dataclass(frozen=True)
class Stage:
    run: Callable[[Work, Say], Facts]
    full: float  # seconds that it takes here
    brief: float


# In this order.
STAGES = {
    "build": Stage(build, 60, 60),
    "models": Stage(models, 200, 80),
    "sweep": Stage(sweep, 260, 30),
    "torture": Stage(torture, 500, 20),
    "controls": Stage(controls, 150, 70),
    "fuzz": Stage(fuzz, 800, 30),
}
