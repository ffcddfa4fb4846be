# SPDX-License-Identifier: Apache-2.0
"""Gather and scatter: an engine's rows into blocks and back, by layout, against the best streaming
loop over the same memory in the same run; short pieces also beside torch's indexing.

Rates are of the copying thread's processor time: what others take of the processor is not in them.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from .bench import Bench
from .native import BenchError, Facts
from .rounds import Candidate, interleave, samples
from .rows import AT_LEAST, Row, row, skipped

TITLE = "gather and scatter, of the non-temporal limit (pieces of 4 KiB and more)"
LEAST_SHARE = 0.85
GATED_BYTES = 4096
ROWS_BYTES = 96 << 20  # that one call copies
RATE = "gb_per_cpu_second"

LLAMA: dict[str, Any] = {"layers": 32, "tokens": 16, "heads": 8, "dim": 128}
LAYOUTS: dict[str, dict[str, Any]] = {
    "layer-separate": LLAMA,
    "layer-separate, HND": LLAMA | {"heads_at": "block"},
    "contiguous": LLAMA | {"order": "contiguous"},
    "block-outermost": LLAMA | {"order": "blocks"},
    "K/V split": LLAMA | {"kv": "split"},
    "MLA": {"layers": 61, "tokens": 16, "heads": 1, "dim": 576, "kv": "latent"},
    "heads outermost": LLAMA | {"heads_at": "outermost"},
    "heads outermost, K/V split": LLAMA | {"heads_at": "outermost", "kv": "split"},
    "the same, 8 tokens": LLAMA | {"heads_at": "outermost", "kv": "split", "tokens": 8},
    "the same, 8 tokens, fp8": LLAMA | {
        "heads_at": "outermost", "kv": "split", "tokens": 8, "dtype": "float8_e4m3fn"},
    "the same, 8 tokens, fp8, 64 a head": LLAMA | {
        "heads_at": "outermost", "kv": "split", "tokens": 8, "dtype": "float8_e4m3fn", "dim": 64},
}


def measure(bench: Bench) -> list[Row]:
    """Rows; the gates are those of pieces of 4 KiB and more. min_ratio() has the least of them."""
    out: list[Row] = []
    for pages in bench.pages:
        for name, sizes in LAYOUTS.items():
            try:
                with ExitStack() as stack:
                    out += _one(bench, stack, pages, name, sizes)
            except BenchError as error:
                if pages == bench.pages[-1]:
                    raise
                out.append(skipped(f"all layouts on {pages} pages", "x", str(error), pages=pages))
                break  # a mount that gives other pages than it was asked for
    return out


def min_ratio(rows: list[Row]) -> float | None:
    return min((r.value for r in rows if r.limit is not None and r.value is not None),
               default=None)


def _one(bench: Bench, stack: ExitStack, pages: str, name: str, sizes: dict[str, Any]
         ) -> list[Row]:
    from kvshm.device import Layout

    layout = Layout(**sizes)
    pieces, nbytes = layout.pieces
    blocks = max(4, min(bench.scale.copy_blocks, ROWS_BYTES // layout.bytes_per_block))
    stored = bench.store(stack, pages, blocks=blocks, fill=0,
                         block_bytes=-(-layout.bytes_per_block // 64) * 64)
    role = bench.role(stack, "paged", blocks=blocks, runs=pieces,
                      row_bytes=layout.bytes_per_block, **stored.args())
    loops = role.facts["loops"].split(",")
    streams = [i for i, yes in enumerate(role.facts["streams"]) if yes == "1"] or [0]
    candidates: dict[str, Candidate] = {way: partial(role.run, f"{way} 0")
                                        for way in ("store", "load")}
    for i in sorted({0, *streams}):
        candidates[f"loop {i}"] = partial(role.run, f"loop {i}")
        candidates[f"back {i}"] = partial(role.run, f"back {i}")
    short = nbytes < GATED_BYTES
    if short and _torch():
        other = bench.python(stack, "gather", blocks=blocks,
                             **{key: str(value) for key, value in sizes.items()})
        candidates |= {what: partial(other.run, f"{what} {bench.ms}")
                       for what in ("index_select", "index_copy_", "copy_")}
    what = f"{name}, {pieces} of {_size(nbytes)}"
    got = interleave(candidates, bench.scale.rounds, bench.progress, f"{what}, {pages} pages")
    return _rows(got, what, pages, loops, streams, short)


def _rows(got: dict[str, list[Facts]], what: str, pages: str, loops: list[str],
          streams: list[int], short: bool) -> list[Row]:
    rates = {name: samples(facts, RATE) for name, facts in got.items()}
    out = []
    for way, reference in (("store", "loop"), ("load", "back")):
        best = max(streams, key=lambda i: median(rates[f"{reference} {i}"]))
        limit = rates[f"{reference} {best}"]
        share = [ours / theirs for ours, theirs in zip(rates[way], limit, strict=True)]
        more: dict[str, Any] = {} if short else {"limit": LEAST_SHARE, "sense": AT_LEAST}
        out.append(row(f"{way}: {what}", share, "x", pages=pages, **more,
                       note=f"{median(rates[way]):.1f} GB/s; {loops[best]} {median(limit):.1f}, "
                            f"memcpy {median(rates[f'{reference} 0']):.1f}"))
    for name in ("index_select", "index_copy_", "copy_"):
        if name in rates:
            out.append(row(f"torch {name}: {what}", rates[name], "GB/s", pages=pages,
                           reference=True))
        elif short:
            out.append(skipped(f"torch {name}: {what}", "GB/s", "no torch here", pages=pages))
    return out


def _torch() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is not None


def _size(nbytes: int) -> str:
    return f"{nbytes >> 10} KiB" if nbytes % 1024 == 0 else f"{nbytes} bytes"
