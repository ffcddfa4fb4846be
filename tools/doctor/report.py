# SPDX-License-Identifier: Apache-2.0
"""The answers as a table for people and as a document for programs."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence

from .probe import Probe

SCHEMA = 1


def as_json(probes: Sequence[Probe]) -> str:
    document = {
        "schema": SCHEMA,
        "kind": "doctor",
        "host": platform.node(),
        "kernel": platform.release(),
        "failed": failed(probes),
        "probes": [p.asdict() for p in probes],
    }
    return json.dumps(document, indent=2)


def as_table(probes: Sequence[Probe]) -> str:
    wide = max((len(p.name) for p in probes), default=0)
    lines = []
    for p in probes:
        lines.append(f"{p.status:4}  {p.name:{wide}}  {p.found}".rstrip())
        indent = " " * (wide + 8)
        lines += [f"{indent}{word}: {text}" for word, text in (("costs", p.costs), ("fix", p.fix))
                  if text]
    counts = ", ".join(
        f"{n} {status}" for status in ("ok", "warn", "fail", "skip")
        if (n := sum(p.status == status for p in probes)))
    return "\n".join([*lines, "", counts])


def failed(probes: Sequence[Probe]) -> int:
    return sum(p.status == "fail" for p in probes)
