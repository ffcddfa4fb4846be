# SPDX-License-Identifier: Apache-2.0
"""The peers' figures as tables of three rows, and as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .catalog import KVSHM, PEERS, SOURCES
from .measure import Cell, Result, Scale

SCHEMA = 1
HEADLINE = "hashes"
FARTHER = 100.0  # times below the nearest peer between processes, keys in hand


def document(machine: dict[str, Any], options: dict[str, Any], wanted: Sequence[str],
             scale: Scale, result: Result) -> str:
    return json.dumps({
        "schema": SCHEMA,
        "kind": "bench peers",
        "machine": machine,
        "options": options,
        "peers": {name: {
            "title": PEERS[name].title,
            "shared": PEERS[name].shared,
            "version": result.versions.get(name, ""),
            "pins": [pin for step in PEERS[name].steps for pin in step],
            "installed": result.installed.get(name, []),
            "absent": result.absent.get(name),
            "notes": list(PEERS[name].notes),
        } for name in wanted},
        "rows": [cell.facts() for cell in result.cells],
        "aims": aims(wanted, scale, result),
    }, indent=2)


def aims(wanted: Sequence[str], scale: Scale, result: Result) -> list[dict[str, Any]]:
    """How many times kvshm lies below the nearest peer of a kind: between processes and keys in
    hand, or in one process. None: no peer of that kind could be measured."""
    said = []
    for shared, source, least in ((True, "keys", FARTHER), (False, "hashes", 1.0),
                                  (False, "tokens", 1.0)):
        for tokens, _ in scale.prompts:
            for block in scale.blocks:
                others = [cell for name in wanted
                          if name != KVSHM and PEERS[name].shared is shared
                          and (cell := result.cell(name, source, tokens, block)).value is not None]
                nearest = min(others, key=_value, default=None)
                ours = result.cell(KVSHM, source, tokens, block).value
                times = nearest.value / ours if nearest and nearest.value and ours else None
                said.append({
                    "source": source, "tokens": tokens, "block": block,
                    "beside": "between processes" if shared else "in one process",
                    "nearest": nearest.peer if nearest else None, "times": times, "aim": least,
                    "holds": None if times is None else times >= least})
    return said


def table(machine: dict[str, Any], wanted: Sequence[str], scale: Scale, result: Result) -> str:
    lines = [
        f"{machine['cpu']}, {machine['cpus']} CPUs, Linux {machine['kernel']}, "
        f"{machine['memory_bytes'] / (1 << 30):.0f} GiB, load {machine['load']:.1f}",
        f"kvshm {machine['kvshm']}, commit {machine['commit']}, Python {machine['python']}",
        f"Look-up + pin of a whole prompt, all of it found, from Python. Medians of {scale.rounds} "
        f"interleaved rounds (quartiles); us a request, ns a token, times kvshm.",
    ]
    for tokens, _ in scale.prompts:
        for block in scale.blocks:
            lines += ["", f"{tokens:,} tokens, {block} a block: {tokens // block:,} blocks"]
            rows = [["", *(PEERS[name].title for name in wanted)]]
            for source, title in SOURCES.items():
                cells = [result.cell(name, source, tokens, block) for name in wanted]
                rows.append([title, *map(_request, cells)])
                rows.append(["", *(_token(cell, cells[0]) for cell in cells)])
            lines += _columns(rows)
    lines.append("")
    for name in wanted:
        peer = PEERS[name]
        pins = ", ".join(pin for step in peer.steps for pin in step)
        version = result.versions.get(name, "")
        about = "; ".join(part for part in (pins, version and f"says {version}") if part)
        lines.append(f"{peer.title}{f' ({about})' if about else ''}: {'; '.join(peer.notes)}")
        reasons = {cell.reason for cell in result.cells
                   if cell.peer == name and cell.value is None and cell.source in peer.sources}
        lines += [f"  not measured: {reason}" for reason in sorted(reasons)]
    lines.append("")
    for aim in aims(wanted, scale, result):
        if aim["times"] is not None:
            lines.append(
                f"{SOURCES[aim['source']]}, {aim['tokens']:,} tokens, {aim['block']} a block: "
                f"{_number(aim['times'])} times below {PEERS[aim['nearest']].title}, the nearest "
                f"{aim['beside']} (aim: {_number(aim['aim'])}{'' if aim['holds'] else '; MISSED'})")
    return "\n".join(line.rstrip() for line in lines).rstrip()


def _value(cell: Cell) -> float:
    assert cell.value is not None
    return cell.value


def _request(cell: Cell) -> str:
    if cell.value is None or cell.spread is None:
        return "-"
    low, high = map(_number, cell.spread)
    return f"{_number(cell.value)} us ({low}-{high})"


def _token(cell: Cell, ours: Cell) -> str:
    if cell.value is None or cell.ns_per_token is None:
        return ""
    text = f"{_number(cell.ns_per_token)} ns"
    return text + (f", x {_number(cell.value / ours.value)}"
                   if ours.value and cell.peer != ours.peer else "")


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(text.ljust(w) if i == 0 else text.rjust(w)
                             for i, (text, w) in enumerate(zip(row, wide, strict=True)))
            for row in rows]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
