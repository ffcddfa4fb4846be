# SPDX-License-Identifier: Apache-2.0
"""P4: a new block, its key given: allocate, register, release; deriving a key by itself."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

from .bench import Bench
from .rounds import Candidate, interleave, samples
from .rows import Row, row

TITLE = "allocate + register + release, key given"
REQUEST = 64
LIMIT_NS = {"free": 600.0, "evict": 1500.0}
WHAT = {"free": "a block from the free ones", "evict": "a block by eviction, default policy"}
PARTS = {"allocate_ns": "allocate", "register_ns": "register", "release_ns": "release"}


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
