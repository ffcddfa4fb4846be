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
    control_seconds: int = 10  # of the torture, each
    torture_seconds: int = 1200  # limits: together the stages end within 40 minutes
    fuzz_seconds: int = 1300
    brief: bool = False


QUICK = Scale(kills=2000, fuzz_executions=20_000, torture_seconds=100, fuzz_seconds=60,
              brief=True)


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
    """Each wrong step that the tests' build can take: the sweep goes to the place where it does
    harm; in full, the torture meets it by chance, too."""
    known = _controls_of(work, say)
    aimed = document([work.program("sweep"), "--controls"], 300, say)
    found: Facts = {}
    for number, (name, control) in enumerate(known):
        say(f"[{number}/{len(known)}] {name}")
        saw = {}
        if control in aimed["seen"] and control not in aimed["missed"]:
            saw["sweep"] = aimed["seen"][control]
        if not work.scale.brief and (text := _torture_sees(work, name)):
            saw["torture"] = text
        found[name] = {"control": control, "caught_by": list(saw), "saw": saw}
    return {"controls": found}


def _controls_of(work: Work, say: Say) -> list[tuple[str, str]]:
    status, out, _ = run([work.program("kvshm_torture"), "--list"], 60, say)
    lines = re.findall(r"^control +(\S+) +(.+)$", out, re.M)
    if status or not lines:
        raise StageError("the torture names no controls")
    return [(name, text.strip()) for name, text in lines]


def _torture_sees(work: Work, name: str) -> str:
    """The first violation; "" if none within the time, or if no verdict came of it."""
    def quiet(line: str) -> None:
        del line

    seconds = work.scale.control_seconds
    try:
        got = document([work.program("kvshm_torture"), "--control", name, "--quiet", "--kills",
                        "1000000", "--seconds", str(seconds)], seconds + 90, quiet)
    except StageError:
        return ""
    return str(got["violation_texts"][0])[:300] if got["violations"] else ""


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
    "controls": Stage(controls, 180, 20),
    "fuzz": Stage(fuzz, 800, 30),
}
