# SPDX-License-Identifier: Apache-2.0
"""What `kvshm warmup` says it has done."""
from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..inspector import tiers
from ..inspector.view import View
from . import text

if TYPE_CHECKING:
    from .engine_http import Engine
    from .lift import Lifter
    from .warmup import Row

_SHOWN = 50  # prompts, as text; --json has all
_KINDS = ("found", "lifted", "left", "missing")


class Report:
    def __init__(self, view: View, rows: list[Row], lifter: Lifter, engine: Engine | None,
                 paths: list[str], block_tokens: int | None, block_bytes: int,
                 seconds: float) -> None:
        self._name, self._path, self._rows = view.name, view.path, rows
        self._block_tokens, self._block_bytes = block_tokens, block_bytes
        self._stopped, self._why, self._limit = lifter.stopped, lifter.why, lifter.limit
        self._seconds, self._files = seconds, ":".join(paths)
        self._totals: dict[str, Any] = {"prompts": len(rows)}
        for kind in ("blocks", *_KINDS, "failed"):
            self._totals[kind] = sum(getattr(row.counts, kind) for row in rows if row.counts)
        self._engine: dict[str, Any] | None = None if engine is None else {
            "url": engine.url, "model": engine.model,
            "answered": sum(row.answer is not None for row in rows),
            "failed": sum(row.error is not None for row in rows),
            "not_sent": sum(row.answer is None and row.error is None for row in rows)}

    @property
    def whole(self) -> bool:
        """Nothing is left to be wished for."""
        sent = self._engine is None or not self._engine["failed"] + self._engine["not_sent"]
        stored = sum(row.stored or 0 for row in self._rows)
        return bool(sent) and self._totals["missing"] + self._totals["left"] <= stored

    def show(self, args: argparse.Namespace) -> None:
        if args.json:
            text.print_json(self._document())
        elif not args.quiet:
            print(self._text(text.wants_color(args.no_color)))

    def _document(self) -> dict[str, Any]:
        return text.document(
            "warmup", name=self._name, path=self._path, files=self._files or None,
            image=tiers.image_of(self._name) if self._files else None,
            block_tokens=self._block_tokens, block_bytes=self._block_bytes,
            limit_blocks=self._limit, seconds=round(self._seconds, 3),
            stopped=self._stopped or None, why=self._why, engine=self._engine,
            totals=self._totals | {"lifted_bytes": self._totals["lifted"] * self._block_bytes},
            prompts=[self._prompt(n, row) for n, row in enumerate(self._rows, 1)])

    def _prompt(self, number: int, row: Row) -> dict[str, Any]:
        made: dict[str, Any] = {"prompt": number, "tokens": row.tokens}
        for kind in ("blocks", *_KINDS, "failed"):
            made[kind] = None if row.counts is None else getattr(row.counts, kind)
        for kind in _KINDS:
            made[f"{kind}_tokens"] = (None if made[kind] is None or self._block_tokens is None
                                      else made[kind] * self._block_tokens)
        made["stored"] = row.stored
        made["engine"] = None if row.answer is None else vars(row.answer)
        made["error"] = row.error
        return made

    def _text(self, color: bool) -> str:
        head = ["PROMPT", "TOKENS", "BLOCKS", "FOUND", "LIFTED", "ON DISK", "MISSING"]
        if self._engine is not None:
            head += ["STORED", "CACHED", "SECONDS"]
        rows = [self._cells(n, row) for n, row in enumerate(self._rows[:_SHOWN], 1)]
        lines = [text.table(head, rows, right=head, color=color)]
        if len(self._rows) > _SHOWN:
            lines.append(f"... and {len(self._rows) - _SHOWN} more: --json has all")
        lines.append(self._summary())
        if self._stopped:
            lines.append(f"stopped: {self._why}; {text.many(self._totals['left'], 'block')} left "
                         "on disk alone" + _REMEDIES[self._stopped])
        lines += self._of_the_engine()
        return "\n".join(lines)

    def _cells(self, number: int, row: Row) -> list[str]:
        counts: list[Any] = [None] * 5 if row.counts is None else [
            row.counts.blocks, *(getattr(row.counts, kind) for kind in _KINDS)]
        cells = [number, row.tokens, *counts]
        if self._engine is not None:
            answer = row.answer
            cells += [row.stored, answer and answer.cached_tokens, answer and answer.seconds]
        return ["-" if cell is None else str(cell) for cell in cells]

    def _summary(self) -> str:
        t, moved = self._totals, self._totals["lifted"] * self._block_bytes
        tokens = f" of {self._block_tokens} tokens" if self._block_tokens else ""
        return (f"{text.many(t['prompts'], 'prompt')}, {text.many(t['blocks'], 'block')}{tokens}: "
                f"{t['found']} found, {t['lifted']} lifted ({text.size(moved)}), "
                f"{t['missing']} missing" + (f", {t['failed']} by a failed transfer"
                                             if t["failed"] else "") + f"; {self._seconds:.3g} s")

    def _of_the_engine(self) -> list[str]:
        if self._engine is None:
            return []
        e = self._engine
        errors = [(n, row.error) for n, row in enumerate(self._rows, 1) if row.error is not None]
        lines = [f"engine: {text.clean(e['model'])}: {text.many(e['answered'], 'answer')}"]
        if errors:
            number, error = errors[0]
            lines.append(f"engine: {text.many(len(errors), 'failure')}, the first at prompt "
                         f"{number}: {text.clean(str(error))}")
        if e["not_sent"]:
            lines.append(f"engine: {text.many(e['not_sent'], 'prompt')} not sent")
        return lines


_REMEDIES = {"limit": ": --limit, or a larger arena", "full": ": a larger arena, or later",
             "tier": "", "timeout": ": --timeout"}
