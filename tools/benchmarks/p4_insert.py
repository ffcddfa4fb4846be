# SPDX-License-Identifier: Apache-2.0
"""P4: a new block, its key given: allocate, register, release; deriving a key by itself."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from typing import Any

from .bench import Bench
from .native import Facts, Role, together
from .rounds import Candidate, interleave, samples
from .rows import AT_LEAST, Row, row, skipped

TITLE = "allocate + register + release, key given"
REQUEST = 64
LIMIT_NS = {"free": 600.0, "evict": 1500.0}
WHAT = {"free": "a block from the free ones", "evict": "a block by eviction, default policy"}
LEAST_OF_TWO = 1.6
PARTS = {"allocate_ns": "allocate", "register_ns": "register", "release_ns": "release"}


def _two(bench: Bench) -> list[Row]:
    """Two processes on two cores that evict from one arena, beside one of them alone."""
    what, pages = "two processes that evict at once, of one's throughput", bench.pages[0]
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        return [skipped(what, "x", "one core only", limit=LEAST_OF_TWO, sense=AT_LEAST)]
    order = f"evict {bench.ms}"
    with ExitStack() as stack:
        stored = bench.store(stack, pages, blocks=bench.scale.blocks, fill=0)
        roles = []
        for number, cpu in enumerate(cpus[:2]):
            roles.append(bench.role(stack, "insert", blocks=bench.scale.blocks, request=REQUEST,
                                    order=2 + number, cpu=cpu, **stored.args()))
            _ = roles[-1].facts  # one after the other: each fills the arena
        got = interleave({"one": lambda: _speed(roles[:1], order),
                          "two": lambda: _speed(roles, order)},
                         max(5, bench.scale.rounds), bench.progress, "two at once")
    ratios = [two / one for one, two in zip(samples(got["one"], "per_us"),
                                            samples(got["two"], "per_us"), strict=True)]
    return [row(what, ratios, "x", limit=LEAST_OF_TWO, sense=AT_LEAST, processes=2, pages=pages,
                blocks=bench.scale.blocks)]


def _speed(roles: list[Role], order: str) -> Facts:
    return {"per_us": sum(1000 / float(facts["mean_ns"]) for facts in together(roles, order))}


def measure(bench: Bench) -> list[Row]:
    blocks, ms = bench.scale.blocks, bench.ms
    rows: list[Row] = []
    with ExitStack() as stack:
        candidates: dict[str, Candidate] = {}
        for pages in bench.pages:
            stored = bench.store(stack, pages, blocks=blocks, fill=0)
            role = bench.role(stack, "insert", blocks=blocks, request=REQUEST, **stored.args())
            for how in WHAT:
                candidates[f"{how} {pages}"] = partial(role.run, f"{how} {ms}")
        alone = bench.role(stack, "map", blocks=blocks)
        candidates["map"] = partial(alone.run, f"insert {ms}")
        keys = bench.role(stack, "keys", block_tokens=16, hash_bytes=32)
        candidates["tokens"] = partial(keys.run, f"tokens {ms}")
        candidates["hashes"] = partial(keys.run, f"hashes {ms}")
        got = interleave(candidates, bench.scale.rounds, bench.progress, "new blocks")
    rows += _two(bench)
    for how in WHAT:
        for pages in bench.pages:
            facts = got[f"{how} {pages}"]
            about: dict[str, Any] = {"blocks": blocks, "pages": pages}
            rows.append(row(WHAT[how], samples(facts), "ns", limit=LIMIT_NS[how],
                            note=f"chains of {REQUEST} blocks", **about))
            rows += [row(f"  of it {text}", samples(facts, name), "ns", **about)
                     for name, text in PARTS.items()]
            if how == "evict":
                rows.append(row("  steps to a leaf, an eviction",
                                samples(facts, "steps_per_eviction"), "", **about))
    rows.append(row("std::unordered_map: erase one, insert one", samples(got["map"]), "ns",
                    blocks=blocks, reference=True))
    rows.append(row("a key from 16 token ids", samples(got["tokens"]), "ns"))
    rows.append(row("a key from an engine's 32-byte hash", samples(got["hashes"]), "ns"))
    return rows
