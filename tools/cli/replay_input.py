# SPDX-License-Identifier: Apache-2.0
"""What the options of `kvshm replay` say about its trace and the sizes of arenas."""
from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TypeVar

from ..replay.failures import ReplayError
from ..replay.reading import read_trace
from ..replay.synthetic import synthetic
from ..replay.trace import Trace
from . import text

T = TypeVar("T")


def trace_of(args: argparse.Namespace) -> Trace:
    if args.synthetic:
        if args.trace:
            raise ReplayError("a TRACE and --synthetic: wanted one of them")
        return synthetic(args.synthetic, args.seed, args.requests)
    if not args.trace:
        raise ReplayError("no TRACE", "give one, or --synthetic chat")
    return read_trace(args.trace, block_tokens=args.block_tokens, every=args.every,
                      tokens_per_block=args.tokens_per_block, requests=args.requests)


def capacities(args: argparse.Namespace, trace: Trace, usual: Sequence[float]) -> list[int]:
    """In blocks, each once, the smallest first."""
    return sorted(set(args.blocks or map(trace.blocks_of, args.fraction or usual)))


def only(values: Sequence[T], option: str) -> T:
    if len(values) != 1:
        raise ReplayError(f"{option}: {len(values)} of them", "wanted one, or --compare FILE")
    return values[0]


def about(trace: Trace) -> str:
    shown = {k: text.clean(str(v)) for k, v in trace.about().items()}
    if not trace.skipped:
        del shown["skipped_lines"]
    return text.pairs("trace", shown)
