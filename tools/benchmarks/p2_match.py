# SPDX-License-Identifier: Apache-2.0
"""P2: the longest prefix of a request's keys, each block held: cost a key, up to 1e7 blocks."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from . import redis
from .bench import Bench, room_for
from .mounts import HUGE, PAGES, SMALL
from .native import Facts
from .rounds import Candidate, interleave, samples
from .rows import Row, row, skipped

TITLE = "prefix match with references, a key of 512"
MATCH, RELEASE = "prefix match, each block held", "giving the prefix back"
MOST_GROWTH = 2.0
ARENA_BYTES, REFERENCE_BYTES = 200, 550  # a block; of map, dict and redis together

Name = tuple[str, str, int]  # what, pages, blocks


def limit_ns(pages: str, blocks: int, bench: Bench) -> float | None:
    return {(HUGE, bench.scale.blocks): 40.0, (HUGE, bench.scale.large): 60.0,
            (SMALL, bench.scale.large): 80.0}.get((pages, blocks))


def measure(bench: Bench) -> list[Row]:
    sizes = [bench.scale.small, bench.scale.blocks]
    need = bench.scale.large * (ARENA_BYTES * len(bench.pages) + REFERENCE_BYTES)
    if not (tight := room_for(need)):
        sizes.append(bench.scale.large)
    with ExitStack() as stack:
        got = _rounds(bench, stack, sizes)
    rows = []
    for (what, pages, blocks), facts in sorted(got.items(), key=lambda one: one[0][2]):
        limit = limit_ns(pages, blocks, bench)
        rows.append(row(what, samples(facts), "ns", blocks=blocks, pages=pages,
                        limit=limit, reference=not pages,
                        note="pins nothing" if what.startswith("redis") else ""))
        if pages:
            rows.append(row(RELEASE, samples(facts, "release_ns"), "ns", blocks=blocks,
                            pages=pages))
    rows += [_growth(bench, pages, got) for pages in bench.pages if not tight]
    missing = [(p, n) for p in PAGES for n in (bench.scale.blocks, bench.scale.large)
               if (MATCH, p, n) not in got and limit_ns(p, n, bench)]
    rows += [skipped(MATCH, "ns", bench.mounts.why_not if p not in bench.pages else tight,
                     pages=p, blocks=n, limit=limit_ns(p, n, bench)) for p, n in missing]
    if not redis.find():
        rows.append(skipped("redis GET, 512 in a pipeline", "ns", redis.WHY_NOT, reference=True))
    return rows


def _rounds(bench: Bench, stack: ExitStack, sizes: list[int]) -> dict[Name, list[Facts]]:
    request, order = bench.scale.chain, f"match {bench.ms}"
    names: dict[str, Name] = {}
    candidates: dict[str, Candidate] = {}

    def add(name: Name, run: Candidate) -> None:
        names[f"{name[0]}, {name[1]} {name[2]}"] = name
        candidates[f"{name[0]}, {name[1]} {name[2]}"] = run

    bench.progress.step(f"setting up {sizes[-1]} blocks", 0)
    roles = []
    for blocks in sizes:  # the references first: they get ready while the arenas are filled
        about = {"blocks": blocks, "request": request}
        alone, dictionary = bench.role(stack, "map", **about), bench.python(stack, "dict", **about)
        add(("std::unordered_map in one process", "", blocks), partial(alone.run, order))
        add(("Python dict in one process", "", blocks), partial(dictionary.run, order))
        roles += [alone, dictionary]
        if redis.find():
            socket = stack.enter_context(redis.server())
            client = bench.role(stack, "redis", socket=socket, blocks=blocks, load=1)
            add(("redis GET, 512 in a pipeline", "", blocks),
                partial(client.run, f"{request} {bench.ms}"))
            roles.append(client)
        for pages in bench.pages:
            stored = bench.store(stack, pages, blocks=blocks)
            role = bench.role(stack, "match", **about, **stored.args())
            add((MATCH, pages, blocks), partial(role.run, order))
            roles.append(role)
    for role in roles:
        _ = role.facts
    got = interleave(candidates, bench.scale.rounds, bench.progress, "512 keys")
    return {names[name]: facts for name, facts in got.items()}


def _growth(bench: Bench, pages: str, got: dict[Name, list[Facts]]) -> Row:
    """From round to round, so that what slows the machine down slows both."""
    small = samples(got[MATCH, pages, bench.scale.blocks])
    large = samples(got[MATCH, pages, bench.scale.large])
    return row(f"growth from {bench.scale.blocks} to {bench.scale.large} blocks",
               [b / a for a, b in zip(small, large, strict=True)], "x", pages=pages,
               limit=MOST_GROWTH)
