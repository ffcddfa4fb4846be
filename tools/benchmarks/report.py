# SPDX-License-Identifier: Apache-2.0
"""The figures as a table for people, and as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from typing import Any

from .rows import Row, Target

SCHEMA = 1
VERDICT = {True: "holds", False: "BROKEN", None: ""}
HEAD = ("", "blocks", "pages", "proc", "value", "quartiles", "target", "")


def document(kind: str, machine: dict[str, Any], options: dict[str, Any],
             targets: Sequence[Target], **more: Any) -> str:
    return json.dumps({
        "schema": SCHEMA,
        "kind": f"bench {kind}",
        "machine": machine,
        "options": options,
        **more,
        "targets": {target.name: _target(target) for target in targets},
    }, indent=2)


def _target(target: Target) -> dict[str, Any]:
    worst = target.tightest
    return {
        "title": target.title,
        "value": worst.value if worst else None,
        "unit": worst.unit if worst else "",
        "target": worst.limit if worst else None,
        "sense": worst.sense if worst else "",
        "holds": target.holds,
        "spread": worst.spread if worst else None,
        "of": worst.what if worst else "",
        "not_measured": [r.what for r in target.gates if r.value is None],
        "detail": [asdict(r) | {"holds": r.holds} for r in target.rows],
    }


def table(machine: dict[str, Any], targets: Sequence[Target]) -> str:
    lines = [
        f"{machine['cpu']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, "
        f"{machine['memory_bytes'] / (1 << 30):.0f} GiB, load {machine['load']:.1f}",
        f"kvshm {machine['kvshm']}, commit {machine['commit']}, Python {machine['python']}; "
        f"base pages of {machine['page_bytes']} bytes, shmem_enabled {machine['shmem_enabled']}",
        "medians of interleaved rounds; * marks a reference",
    ]
    cells = [[_cells(r) for r in target.rows] for target in targets]
    every = [HEAD] + [line for part in cells for line in part]
    wide = [max(len(line[i]) for line in every) for i in range(len(HEAD))]
    for target, part in zip(targets, cells, strict=True):
        verdict = {True: ": holds", False: ": BROKEN", None: ": not measured"}[target.holds]
        verdict = verdict if target.gates else ""  # figures without a target
        lines += ["", f"{target.name}  {target.title}{verdict}", _line(HEAD, wide)]
        for one, line in zip(target.rows, part, strict=True):
            lines.append(_line(line, wide) + (f"  {one.note}" if one.note else ""))
    return "\n".join(line.rstrip() for line in lines)


def page(command: str, text: str) -> str:
    """The table as a page of docs/results."""
    day = f"{date.today():%-d %B %Y}"
    return f"# {command}\n\nWritten by `{command} --out` on {day}.\n\n```\n{text}\n```\n"


def _cells(r: Row) -> tuple[str, ...]:
    return (
        ("* " if r.reference else "  ") + r.what,
        f"{r.blocks:,}" if r.blocks else "",
        r.pages,
        str(r.processes) if r.processes > 1 else "",
        "-" if r.value is None else f"{_number(r.value)} {r.unit}".rstrip(),
        f"{_number(r.spread[0])}-{_number(r.spread[1])}" if r.spread else "",
        f"{r.sense} {_number(r.limit)}" if r.limit is not None else "",
        VERDICT[r.holds] + (": level" if r.holds and r.level else ""),
    )


def _line(cells: Sequence[str], wide: Sequence[int]) -> str:
    first, *rest = (text.ljust(w) if i == 0 else text.rjust(w)
                    for i, (text, w) in enumerate(zip(cells, wide, strict=True)))
    return "  ".join([first, *rest])


def _number(value: float) -> str:
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
