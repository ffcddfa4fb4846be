# SPDX-License-Identifier: Apache-2.0
"""What the stages gave, put together; and whether that is a proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Facts = Mapping[str, Any]


@dataclass
class Verdict:
    summary: dict[str, Any]
    failures: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.failures


def judge(wanted: Sequence[str], given: Mapping[str, Facts], errors: Mapping[str, str],
          kills: int, executions: int, every_step: bool = True) -> Verdict:
    """wanted: the stages asked for; given: their facts; errors: why a stage gave none."""
    failures = [f"{name}: {why}" for name, why in errors.items()]
    failures += [f"{name}: it gave no result" for name in wanted
                 if name not in given and name not in errors]
    v = Verdict({}, failures)
    _kills(v, wanted, given, kills, every_step)
    _models(v, given)
    _controls(v, wanted, given)
    _fuzz(v, given, executions)
    return v


def _kills(v: Verdict, wanted: Sequence[str], given: Mapping[str, Facts], kills: int,
           every_step: bool) -> None:
    runs = {name: given[name] for name in ("sweep", "torture") if name in given}
    deaths = sum(int(run["kills"]) for run in runs.values())
    violations = sum(int(run["violations"]) for run in runs.values())
    v.summary |= {"kills": deaths, "violations": violations}
    for name, run in runs.items():
        if run["violations"]:
            texts = run.get("violation_texts") or run.get("first_violations") or ["?"]
            v.failures.append(f"{name}: {run['violations']} violations, the first: {texts[0]}")
    if "torture" in runs and deaths < kills:
        v.failures.append(f"{deaths:,} kills, wanted {kills:,}")
    died: dict[str, int] = {}
    for run in runs.values():
        for step, n in (run.get("by_step") or run.get("steps") or {}).items():
            died[step] = died.get(step, 0) + int(n)
    missed = sorted(step for step, n in died.items() if not n)
    v.summary |= {"steps_covered": len(died) - len(missed), "steps": len(died),
                  "steps_missed": missed, "kills_by_step": died}
    # One of the two by itself has steps that it does not come by.
    if every_step and {"sweep", "torture"} <= set(wanted) and len(runs) == 2:
        if missed or not died:
            v.failures.append(f"nobody died at {', '.join(missed) or 'any step'}")


def _models(v: Verdict, given: Mapping[str, Facts]) -> None:
    facts = given.get("models")
    v.summary["model_states"] = sum(int(row["states"]) for row in facts["rows"]) if facts else 0
    if not facts:
        return
    if not facts["rows"] or not v.summary["model_states"]:
        v.failures.append("models: no state was searched")
    for what in ("unexpected", "steps_never_taken", "controls_absent"):
        if facts.get(what):
            v.failures.append(f"models, {what.replace('_', ' ')}: {', '.join(facts[what])}")


def _controls(v: Verdict, wanted: Sequence[str], given: Mapping[str, Facts]) -> None:
    """By the protocol's names: caught in the model, or in C++, or both."""
    caught: dict[str, list[str]] = {}
    for row in given.get("models", {}).get("rows", ()):
        if row["control"]:
            by = caught.setdefault(row["control"], [])
            if row["as_expected"] and "model" not in by:
                by.append("model")
    missed_here = []
    for name, one in given.get("controls", {}).get("controls", {}).items():
        by = caught.setdefault(one["control"], [])
        by.extend(one["caught_by"])
        if not one["caught_by"]:
            missed_here.append(name)
    missed = sorted(name for name, by in caught.items() if not by)
    v.summary |= {"controls": len(caught), "controls_caught": len(caught) - len(missed),
                  "controls_missed": missed, "controls_caught_by": caught,
                  "controls_missed_in_cpp": missed_here}
    if {"models", "controls"} <= set(wanted):
        if missed:
            v.failures.append(f"controls that nothing saw: {', '.join(missed)}")
    elif "controls" in wanted and missed_here:
        v.failures.append(f"controls that C++ did not see: {', '.join(missed_here)}")
    for stage in ("models", "controls"):
        if stage in wanted and stage in given and not caught:
            v.failures.append(f"{stage}: there was no control")


def _fuzz(v: Verdict, given: Mapping[str, Facts], executions: int) -> None:
    facts = given.get("fuzz")
    v.summary |= {"fuzz_executions": int(facts["executions"]) if facts else 0,
                  "fuzz_crashes": int(facts["crashes"]) if facts else 0}
    if not facts:
        return
    if facts["crashes"]:
        v.failures.append(f"fuzz: {facts['crashes']} crashes, kept in build/fuzz/crashes")
    if facts["executions"] < executions:
        v.failures.append(f"fuzz: {facts['executions']:,} executions, wanted {executions:,}")
