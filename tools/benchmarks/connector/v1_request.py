# SPDX-License-Identifier: Apache-2.0
"""V1: what a request of 100,000 tokens costs the scheduler, and LMCache on the same tokens."""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import ExitStack
from functools import partial
from typing import Any

from ..bench import Bench
from ..mounts import HUGE
from ..native import Role
from ..peers import measure as peers
from ..progress import Progress
from ..rounds import Candidate, interleave, samples
from ..rows import Row, row, skipped

TITLE = "a request of 100,000 tokens, 16 a block: 6250 block hashes of 32 bytes"
BESIDE = "the same request in LMCache, in one process"
TOKENS, PROMPTS = 100_000, 4
WHAT = {
    "keys": ("its keys, once", 2000.0),
    "first": ("look-up of all blocks, each held", 500.0),
    "again": ("the same again, tried later: keys kept, one probe", 50.0),
    "extension": ("the key of one more block", None),
}
LMCACHE = {
    "hashes": "look-up + pin, block hashes",
    "tokens": "look-up + pin, token ids",
    "keys": "look-up + pin, its keys in hand",
}

_numbers = itertools.count()


def role(stack: ExitStack, kind: str, **args: object) -> Role:
    given = [f"{name}={value}" for name, value in args.items() if value != ""]
    one = Role([sys.executable, "-m", f"{__package__}.roles", kind, *given])
    return stack.enter_context(one)


def arena(bench: Bench, pages: str) -> dict[str, str]:
    """Arguments that name a new one, with pages of that size."""
    return {"name": f"bench-vllm-{os.getpid()}-{next(_numbers)}",
            "dir": bench.mounts.folders[pages], "huge": "require" if pages == HUGE else "off"}


def measure(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    with ExitStack() as stack:
        candidates: dict[tuple[str, str], Candidate] = {}
        for pages in bench.pages:
            about: dict[str, Any] = arena(bench, pages) | {
                "tokens": TOKENS, "prompts": min(PROMPTS, bench.scale.rounds)}
            _ = role(stack, "store", **about).facts
            one = role(stack, "ask", **about)
            candidates |= {(what, pages): partial(one.run, f"{what} {bench.ms}") for what in WHAT}
        named = {f"{what}, {pages}": (what, pages) for what, pages in candidates}
        got = interleave({name: candidates[key] for name, key in named.items()},
                         bench.scale.rounds, bench.progress, "the scheduler's side")
    for name, facts in got.items():
        what, pages = named[name]
        text, limit = WHAT[what]
        rows.append(row(text, [ns / 1000 for ns in samples(facts, "median")], "us", limit=limit,
                        pages=pages, blocks=TOKENS // 16))
    rows.sort(key=lambda one: [text for text, _ in WHAT.values()].index(one.what))
    return rows


def beside(bench: Bench) -> list[Row]:
    """The same tokens and hashes, in the same run."""
    scale = peers.Scale(blocks=(16,), prompts=((TOKENS, PROMPTS),), rounds=bench.scale.rounds,
                        round_ms=bench.ms)
    result = peers.measure(["lmcache"], scale, Progress(["16 tokens a block"]))
    rows = []
    for source, what in LMCACHE.items():
        cell = result.cell("lmcache", source, TOKENS, 16)
        if cell.value is None:
            rows.append(skipped(what, "us", cell.reason, reference=True))
        else:
            rows.append(Row(what, cell.value, "us", spread=cell.spread, samples=cell.samples,
                            blocks=TOKENS // 16, reference=True,
                            note=f"lmcache {result.versions.get('lmcache', '')}"))
    return rows
