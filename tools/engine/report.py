# SPDX-License-Identifier: Apache-2.0
"""The outcome as a table for people, and as one JSON document."""

from __future__ import annotations

import json
from dataclasses import dataclass
from statistics import median
from typing import Any

from .checks import Check, as_json
from .records import Outcome, Served, fraction_from_others

HEADS = ("worker", "requests", "prompt tokens", "from itself", "from others", "computed",
         "TTFT ms", "without kvshm ms")


@dataclass(frozen=True)
class Row:
    worker: str
    requests: int
    prompt_tokens: int
    from_self: int
    from_others: int
    computed: int
    ttft_ms: float
    ttft_cold_ms: float | None


def rows(outcome: Outcome) -> list[Row]:
    every: list[Served] = list(outcome.served)
    if outcome.crash is not None:
        every += outcome.crash.survivors + ([outcome.crash.heir] if outcome.crash.heir else [])
    if outcome.restart is not None:
        every.append(outcome.restart)
    found = []
    for worker in sorted({one.worker for one in every}):
        mine = [one for one in every if one.worker == worker]
        cold = [one.cold.ttft_ms for one in mine if one.cold is not None]
        found.append(
            Row(
                worker=worker,
                requests=len(mine),
                prompt_tokens=sum(len(one.prompt) for one in mine),
                from_self=sum(one.from_self for one in mine),
                from_others=sum(one.from_others for one in mine),
                computed=sum(one.computed for one in mine),
                ttft_ms=median(one.reply.ttft_ms for one in mine),
                ttft_cold_ms=median(cold) if cold else None,
            )
        )
    return found


def document(
    outcome: Outcome, checks: dict[str, Check], options: dict[str, Any], arena: dict[str, Any]
) -> str:
    crash = outcome.crash
    survived = all(
        checks[name].holds
        for name in ("killed_in_mid_prefill", "survivors_answered", "blocks_back_ms",
                     "arena_valid")
        if name in checks
    )
    return json.dumps(
        {
            "holds": all(check.holds for check in checks.values()),
            "kv": outcome.kv,
            "reused_from_others": fraction_from_others(outcome.served),
            "ttft_cold_ms": outcome.ttft_cold_ms(),
            "ttft_warm_ms": outcome.ttft_warm_ms(),
            "bytes_copied_between_processes": outcome.bytes_copied,
            "tokens_equal": outcome.tokens_equal(),
            "logits_max_diff": outcome.logits_max_diff(),
            "survived_kill": crash is not None and survived,
            "warm_after_restart": "warm_after_restart" in checks
            and checks["warm_after_restart"].holds,
            "blocks_back_ms": crash.clean_ms if crash else None,
            "workers": [vars(row) for row in rows(outcome)],
            "options": options,
            "arena": arena,
            "checks": as_json(checks),
        },
        indent=2,
    )


def text(outcome: Outcome, checks: dict[str, Check], arena: dict[str, Any]) -> str:
    lines = _table(outcome)
    lines.append("")
    if outcome.bytes_copied is not None:
        lines.append(f"bytes copied between processes: {outcome.bytes_copied}")
    cold, warm = outcome.ttft_cold_ms(), outcome.ttft_warm_ms()
    if cold and warm:
        lines.append(
            f"time to first token, median of {len([o for o in outcome.served if o.cold])} requests"
            f" asked both ways: {warm:.0f} ms, without kvshm {cold:.0f} ms"
        )
    if arena:
        lines.append(
            f"arena {arena['name']}: {arena['blocks']} blocks of {arena['block_bytes']} bytes, "
            f"{arena['registered']} registered, {arena['evicted']} evicted, "
            f"{arena['loaded']} loaded from disk"
        )
    crash = outcome.crash
    if crash is not None:
        lines.append(
            f"{crash.victim} killed at token {crash.killed_at} of {crash.prompt_tokens}, with "
            f"{crash.registered} blocks of that prompt registered; asked again elsewhere, "
            f"{crash.heir_from_victim} tokens were reused from it"
        )
    lines.append("")
    width = max(len(name) for name in checks)
    for name, check in checks.items():
        mark = "ok    " if check.holds else "FAILED"
        lines.append(f"{mark} {name:<{width}}  {_short(check.value)}  (wanted: {check.wanted})")
    return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(outcome: Outcome) -> list[str]:
    cells = [list(HEADS)]
    for row in rows(outcome):
        cold = "-" if row.ttft_cold_ms is None else f"{row.ttft_cold_ms:.0f}"
        cells.append([row.worker, *(str(value) for value in list(vars(row).values())[1:6]),
                      f"{row.ttft_ms:.0f}", cold])
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADS))]
    lines = []
    for line in cells:
        rest = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        lines.append("  ".join([line[0].ljust(widths[0]), *rest]))
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines
