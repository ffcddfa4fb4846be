# SPDX-License-Identifier: Apache-2.0
"""The result as JSON and as a page."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .verdict import Verdict

SHOWN = (
    ("kills", "SIGKILLs (sweep and torture)"),
    ("violations", "violations"),
    ("steps_covered", "steps at which a process died"),
    ("steps", "of so many"),
    ("controls", "negative controls"),
    ("controls_caught", "of these caught"),
    ("model_states", "states of the models"),
    ("fuzz_executions", "fuzz executions"),
    ("fuzz_crashes", "fuzz crashes"),
)


def machine(root: Path) -> dict[str, Any]:
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True,
                              timeout=30)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"cpu": cpu[1] if cpu else platform.machine(), "cpus": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "commit": (git("rev-parse", "--short=12", "HEAD") or "unknown")
            + ("+" if changed else "")}


def document(about: Mapping[str, Any], seconds: Mapping[str, float], stages: Mapping[str, Any],
             verdict: Verdict) -> dict[str, Any]:
    return {**verdict.summary, "holds": verdict.holds, "failures": verdict.failures,
            "seconds": {name: round(s, 1) for name, s in seconds.items()},
            "machine": dict(about), "stages": dict(stages)}


def table(doc: Mapping[str, Any]) -> str:
    lines = [f"{text:34} {doc[name]:>15,}" for name, text in SHOWN if name in doc]
    seconds = doc["seconds"]
    lines += ["", "  ".join(f"{name} {s:.0f} s" for name, s in seconds.items())
              + f"; together {sum(seconds.values()) / 60:.1f} min"]
    lines += [f"FAILED  {why}" for why in doc["failures"]]
    lines.append("It holds." if doc["holds"] else "It does not hold.")
    return "\n".join(lines)


def page(doc: Mapping[str, Any], command: str) -> str:
    about = doc["machine"]
    out = ["# Proof: kill it anywhere", "",
           f"`{command}`, commit {about['commit']}, {about['cpu']}, {about['cpus']} CPUs, Linux "
           f"{about['kernel']}.", "", "```", table(doc), "```", ""]
    if by := doc.get("controls_caught_by"):
        out += ["## Negative controls", "", "| control | caught by |", "|---|---|"]
        out += [f"| {name} | {', '.join(sorted(set(seen))) or 'nothing'} |"
                for name, seen in sorted(by.items())] + [""]
    torture = doc["stages"].get("torture")
    if torture:
        out += ["## Deaths of the torture", "", _counts("the way", torture["by_way"]),
                _counts("what the process held", torture["by_state"]),
                _counts("its operation", torture["by_operation"])]
        for said in torture.get("last_words", ()):
            out += ["## What a worker said before its end", "", "```", *said, "```", ""]
    if steps := doc.get("kills_by_step"):
        out += ["## Deaths at each step", "", _counts("step", steps)]
    return "\n".join(out).rstrip() + "\n"


def _counts(what: str, counts: Mapping[str, int]) -> str:
    rows = [f"| {name} | {n:,} |" for name, n in counts.items()]
    return "\n".join([f"| {what} | deaths |", "|---|---|", *rows, ""])


def write(doc: Mapping[str, Any], path: Path, command: str) -> None:
    """PATH.json and PATH.md."""
    base = path.with_suffix("")
    base.parent.mkdir(parents=True, exist_ok=True)
    base.with_suffix(".json").write_text(json.dumps(doc, indent=1) + "\n")
    base.with_suffix(".md").write_text(page(doc, command))
