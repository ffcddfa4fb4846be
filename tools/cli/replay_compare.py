# SPDX-License-Identifier: Apache-2.0
"""`kvshm replay --compare` and `--compare-sharing`."""
from __future__ import annotations

import argparse
from collections.abc import Sequence

from kvshm.eviction import PRESETS

from ..replay import picture
from ..replay.compare import FRACTIONS, Point, compare
from ..replay.failures import ReplayError
from ..replay.progress import Progress
from ..replay.sharing import SHARED, Comparison, compare_sharing
from ..replay.temporary import NEW_ARENA
from ..replay.trace import Trace
from . import text
from .failures import FINE
from .replay_input import about, capacities, only, trace_of


def run_comparison(args: argparse.Namespace) -> int:
    if args.kills:
        raise ReplayError("--kills: with one policy at one capacity only")
    if args.compare_sharing and args.processes > 1:
        raise ReplayError("--processes: not with --compare-sharing")
    return _sharing(args) if args.compare_sharing else _policies(args)


def _policies(args: argparse.Namespace) -> int:
    policies = args.policy or list(PRESETS)
    if args.compare:
        picture.check(args.compare)
    trace = trace_of(args)
    sizes = capacities(args, trace, FRACTIONS)
    with Progress(args.quiet) as progress:
        points = compare(trace, policies, sizes, args.processes, not args.no_reference, progress)
    if args.compare:
        picture.write(args.compare, f"{trace.name}, {trace.requests} requests", points)
    if args.json:
        text.print_json(text.document("replay-compare", **trace.about(), points=[
            dict(policy=p.policy, reference=p.reference, fraction=p.fraction, blocks=p.blocks,
                 block_hit_ratio=p.ratios.block, token_hit_ratio=p.ratios.token,
                 compute_hit_ratio=p.ratios.compute) for p in points]))
    elif not args.quiet:
        print(f"{about(trace)}\n\n{_table_of_policies(points, text.wants_color(args.no_color))}")
    return FINE


def _table_of_policies(points: Sequence[Point], color: bool) -> str:
    sizes = sorted({p.blocks for p in points})
    found = {(p.policy, p.blocks): p.ratios.block for p in points}
    shares = {p.blocks: f"{100 * p.fraction:.3g}%" for p in points}
    rows = [[name, *(f"{100 * found[name, size]:.2f}" for size in sizes)]
            for name in dict.fromkeys(p.policy for p in points)]
    heads = [f"{size} ({shares[size]})" for size in sizes]
    return "# block hit ratios in %, by blocks\n" + text.table(
        ["POLICY", *heads], rows, right=heads, color=color)


def _sharing(args: argparse.Namespace) -> int:
    policy = only(args.policy or [NEW_ARENA], "--policy")
    trace = trace_of(args)
    sizes = capacities(args, trace, (0.1,))
    with Progress(args.quiet) as progress:
        found = {size: compare_sharing(trace, policy, size, args.engines, progress)
                 for size in sizes}
    if args.json:
        text.print_json(text.document(
            "replay-sharing", **trace.about(), policy=policy, comparisons=[
                dict(total_blocks=size, engines=c.engines, routing=c.routing, blocks=c.blocks,
                     block_hit_ratio=c.ratios.block, token_hit_ratio=c.ratios.token,
                     compute_hit_ratio=c.ratios.compute) for size in sizes for c in found[size]]))
    elif not args.quiet:
        print(f"{about(trace)}\n\n"
              f"{_table_of_sharing(trace, policy, found, text.wants_color(args.no_color))}")
    return FINE


def _table_of_sharing(trace: Trace, policy: str, found: dict[int, list[Comparison]],
                      color: bool) -> str:
    heads = [f"{size} ({100 * size / trace.unique:.3g}%)" for size in found]
    first, *_ = found.values()
    rows = []
    for i, c in enumerate(first):
        name = "one arena that all share" if c.routing == SHARED else (
            f"{c.engines} private, {c.routing}")
        rows.append([name, *(f"{100 * row[i].ratios.block:.2f}" for row in found.values())])
    return f"# block hit ratios in % by {policy}, by blocks of all arenas together\n" + text.table(
        ["ARENAS", *heads], rows, right=heads, color=color)
