# SPDX-License-Identifier: Apache-2.0
"""P1: look-up + pin + release of one block that another process stored; one call from Python."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from . import redis
from .bench import Bench
from .mounts import HUGE, SMALL
from .native import Facts, Role, together
from .rounds import Candidate, interleave, samples
from .rows import Row, row, skipped

TITLE = "cross-process look-up + pin + release"
ONE = "one block: look-up + pin + release"
PREFIX = "from Python: match of a 512-block prefix, one call"
LIMIT_NS = {HUGE: 150.0, SMALL: 250.0}
LIMIT_PREFIX_US = 40.0
PROCESSES = (1, 2, 4)


def measure(bench: Bench) -> list[Row]:
    rows = []
    for blocks in (bench.scale.blocks, bench.scale.small):
        with ExitStack() as stack:
            rows += _at(bench, stack, blocks, gated=blocks == bench.scale.blocks)
    if HUGE not in bench.pages:
        rows.append(skipped(ONE, "ns", bench.mounts.why_not, pages=HUGE, limit=LIMIT_NS[HUGE]))
    return rows


def _at(bench: Bench, stack: ExitStack, blocks: int, gated: bool) -> list[Row]:
    """Many processes only at the size that is gated."""
    counts = PROCESSES if gated else PROCESSES[:1]
    order = f"point {bench.ms}"
    candidates: dict[str, Candidate] = {}
    described: dict[str, Row] = {}

    def add(what: str, run: Candidate, processes: int, **more: object) -> None:
        name = f"{what}, {more.get('pages', '')} {processes}"
        candidates[name] = run
        described[name] = Row(what, None, "ns", blocks=blocks, processes=processes,
                              **more)  # type: ignore[arg-type]

    for pages in bench.pages:
        stored = bench.store(stack, pages, blocks=blocks)
        roles = [bench.role(stack, "point", blocks=blocks, order=7 + i, **stored.args())
                 for i in range(max(counts))]
        for n in counts:
            limit = LIMIT_NS[pages] if gated and n == 1 else None
            add(ONE, partial(_several, roles[:n], order), n, pages=pages, limit=limit)
        prefix = bench.python(stack, "match", blocks=blocks, request=bench.scale.chain,
                              **stored.args())
        add(PREFIX, partial(prefix.run, order), 1, pages=pages)
    latency = bench.role(stack, "latency", blocks=blocks)
    add("one load that depends on the last: memory latency", partial(latency.run, order), 1,
        reference=True, note="64 bytes a block")
    alone = bench.role(stack, "map", blocks=blocks)
    add("std::unordered_map in one process", partial(alone.run, order), 1, reference=True)
    shared = bench.role(stack, "map_shared", blocks=blocks)
    for n in counts:
        add("std::unordered_map behind a shared mutex", partial(shared.run, f"{n} {bench.ms}"), n,
            reference=True)
    dictionary = bench.python(stack, "dict", blocks=blocks)
    add("Python dict in one process", partial(dictionary.run, order), 1, reference=True)
    if redis.find():
        socket = stack.enter_context(redis.server())
        clients = [bench.role(stack, "redis", socket=socket, blocks=blocks, load=int(i == 0),
                              order=7 + i) for i in range(max(counts))]
        for n in counts:
            _ = [client.facts for client in clients[:n]]
            add("redis GET, unix socket", partial(_several, clients[:n], f"1 {bench.ms}"), n,
                reference=True, note="pins nothing")
    got = interleave(candidates, bench.scale.rounds, bench.progress, f"{blocks} blocks")
    rows = [_row(described[name], facts, gated and described[name].pages == bench.pages[0])
            for name, facts in got.items()]
    if not redis.find():
        rows.append(skipped("redis GET, unix socket", "ns", redis.WHY_NOT, reference=True))
    return rows


def _several(roles: list[Role], order: str) -> Facts:
    """What a process of them sees, and what they get done together."""
    answers = together(roles, order)
    return {"ns": sum(a["ns"] for a in answers) / len(answers),
            "per_second": sum(a["per_second"] for a in answers)}


def _row(like: Row, facts: list[Facts], gated: bool) -> Row:
    about = {name: getattr(like, name) for name in
             ("blocks", "processes", "pages", "reference", "note", "limit")}
    if like.what == PREFIX:
        about["limit"] = LIMIT_PREFIX_US if gated else None
        return row(like.what, [ns / 1000 for ns in samples(facts)], "us", **about)
    if like.processes > 1:
        rate = sorted(samples(facts, "per_second"))[len(facts) // 2]
        about["note"] = ", ".join(filter(None, [f"{rate / 1e6:.2f} M/s in all", like.note]))
    return row(like.what, samples(facts), "ns", **about)
