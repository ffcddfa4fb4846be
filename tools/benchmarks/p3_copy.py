# SPDX-License-Identifier: Apache-2.0
"""P3: copying into a block against the fastest copy that this machine can do; reading in place."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median

from .bench import Bench
from .rounds import Candidate, interleave, samples
from .rows import AT_LEAST, Row, row

TITLE = "copy into a block, of the non-temporal limit"
BLOCK_BYTES = 2 << 20
LEAST_SHARE = 0.9


def measure(bench: Bench) -> list[Row]:
    rows = []
    for pages in bench.pages:
        with ExitStack() as stack:
            rows += _into(bench, stack, pages)
        with ExitStack() as stack:
            rows += _paged(bench, stack, pages)
    with ExitStack() as stack:
        stored = bench.store(stack, bench.pages[0], blocks=16, block_bytes=BLOCK_BYTES, chain=16)
        reader = bench.role(stack, "read", blocks=16, **stored.args())
        answer = reader.run("read")
        rows.append(Row(
            "bytes copied while another process's blocks are read", float(answer["bytes_copied"]),
            "bytes", limit=0.0, samples=1, pages=stored.pages,
            note=f"{answer['bytes_read']} bytes read and compared in place"))
    return rows


def _into(bench: Bench, stack: ExitStack, pages: str) -> list[Row]:
    blocks = bench.scale.copy_blocks
    stored = bench.store(stack, pages, blocks=blocks, block_bytes=BLOCK_BYTES, fill=0)
    role = bench.role(stack, "copy", blocks=blocks, **stored.args())
    loops = role.facts["loops"].split(",")
    ours = f"kvshm_copy_in ({role.facts['variant']})"
    candidates: dict[str, Candidate] = {
        name: partial(role.run, f"variant {number}") for number, name in enumerate([ours, *loops])}
    got = interleave(candidates, bench.scale.rounds, bench.progress, f"2 MiB, {pages} pages")
    rates = {name: samples(facts, "gb_per_second") for name, facts in got.items()}
    streams = [name for name, yes in zip(loops, role.facts["streams"], strict=True) if yes == "1"]
    best = max(streams or loops, key=lambda name: median(rates[name]))
    share = [a / b for a, b in zip(rates[ours], rates[best], strict=True)]
    rows = [row("copy-in, of the best loop of this run", share, "x", limit=LEAST_SHARE,
                sense=AT_LEAST, pages=pages, note=f"the best: {best}")]
    rows.append(row(ours, rates[ours], "GB/s", pages=pages))
    rows += [row(name, rates[name], "GB/s", pages=pages, reference=True) for name in loops]
    return rows


def _paged(bench: Bench, stack: ExitStack, pages: str) -> list[Row]:
    """An engine's rows of 2 MiB, each of one run, 32 or 512, many in one call."""
    blocks = bench.scale.copy_blocks
    stored = bench.store(stack, pages, blocks=blocks, block_bytes=BLOCK_BYTES, fill=0)
    role = bench.role(stack, "paged", blocks=blocks, runs="1,32,512", **stored.args())
    orders = {"kvshm_copy_in, beside paged rows": "copy_in 0",
              "memcpy, beside paged rows": "loop 0"}
    orders |= {f"pages_{what}, {runs}": f"{what} {number}" for what in ("store", "load")
               for number, runs in enumerate(("1 run", "32 runs", "512 runs"))}
    candidates: dict[str, Candidate] = {
        name: partial(role.run, order) for name, order in orders.items()}
    got = interleave(candidates, bench.scale.rounds, bench.progress, f"paged rows, {pages} pages")
    return [row(name, samples(facts, "gb_per_second"), "GB/s", pages=pages, reference=number < 2)
            for number, (name, facts) in enumerate(got.items())]
