# SPDX-License-Identifier: Apache-2.0
"""V2: a request's blocks between the engine's KV tensors and the arena, by the connector's
transfers for host memory: one thread, everything included but the allocation."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from ..bench import Bench
from ..rounds import Candidate, interleave, samples
from ..rows import Row, row
from .v1_request import arena, role

TITLE = "a worker's copies, 2 MiB a block (32 layers, 8 KV heads of 128, 16 tokens)"
LAYOUTS = {"blocks": "a block in one piece", "layers": "a tensor a layer"}
WHAT = {"save": "save", "load": "load"}


def measure(bench: Bench) -> list[Row]:
    candidates: dict[str, Candidate] = {}
    blocks = bench.scale.copy_blocks
    with ExitStack() as stack:
        for pages in bench.pages:
            for layout, text in LAYOUTS.items():
                one = role(stack, "copy", blocks=blocks, layout=layout, **arena(bench, pages))
                _ = one.facts
                for what in WHAT:
                    candidates[f"{what}, {text}|{pages}"] = partial(one.run, f"{what} {bench.ms}")
        candidates["copy between two arrays in private memory|"] = partial(
            one.run, f"memory {bench.ms}")
        got = interleave(candidates, bench.scale.rounds, bench.progress, "copies")
    rows = []
    for name, facts in got.items():
        what, _, pages = name.partition("|")
        rows.append(row(what, samples(facts, "median"), "GB/s", pages=pages,
                        blocks=blocks if pages else None, reference=not pages))
    return rows
