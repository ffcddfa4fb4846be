# SPDX-License-Identifier: Apache-2.0
"""The options of `kvshm replay`, apart from what runs it: the parser stays fast."""
from __future__ import annotations

import argparse


def replay_options(made: argparse.ArgumentParser) -> None:
    made.add_argument("trace", metavar="TRACE", nargs="?",
                      help="a trace, as it is or packed with zstd or gzip; a name is also looked "
                      "for in the folders of KVSHM_TRACES; - = standard input")
    made.add_argument("--synthetic", metavar="KIND", choices=["chat", "agentic", "api"],
                      help="a load made up here in place of a TRACE: chat, agentic or api")
    made.add_argument("--seed", type=_whole, default=0, metavar="N", help="of --synthetic")
    made.add_argument("--policy", type=_names, default=[], metavar="P",
                      help="what the arena evicts by, a name of kvshm.eviction.PRESETS (that of a "
                      "new arena); several, or all, for --compare: P,P,...")
    size = made.add_mutually_exclusive_group()
    size.add_argument("--blocks", type=_sizes, default=[], metavar="N",
                      help="of the arena; several for --compare: N,N,...")
    size.add_argument("--fraction", type=_fractions, default=[], metavar="F",
                      help="blocks as a share of the trace's different ones (0.1)")
    made.add_argument("--requests", type=_one_or_more, default=0, metavar="N",
                      help="only the first N")
    coarser = made.add_mutually_exclusive_group()
    coarser.add_argument("--every", type=_one_or_more, default=1, metavar="K",
                         help="join K blocks of the trace to one")
    coarser.add_argument("--tokens-per-block", type=_one_or_more, default=0, metavar="T",
                         help="join as many as make T tokens")
    made.add_argument("--block-tokens", type=_one_or_more, default=0, metavar="T",
                      help="of the trace's blocks; found from its lengths if not given")
    made.add_argument("--processes", type=_one_or_more, default=1, metavar="N",
                      help="so many processes serve it together, dealt round robin")
    made.add_argument("--kills", type=_whole, default=0, metavar="N",
                      help="kill a process N times, each time start another in its place")
    mode = made.add_mutually_exclusive_group()
    mode.add_argument("--compare", metavar="FILE", nargs="?", const="",
                      help="several policies at several capacities; hit ratio over capacity goes "
                      "to FILE, a .png or .html")
    mode.add_argument("--compare-sharing", action="store_true",
                      help="one shared arena against private ones, a part of its blocks each, "
                      "behind routers")
    made.add_argument("--engines", type=_sizes, default=[2, 4, 8], metavar="N,N,...",
                      help="with --compare-sharing: how many share (2,4,8)")
    made.add_argument("--no-reference", action="store_true",
                      help="without exact LRU, ARC and Belady's choice")


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("wanted 0 or more")
    return value


def _one_or_more(text: str) -> int:
    value = int(text)
    if not 1 <= value < 2**31:
        raise argparse.ArgumentTypeError("wanted 1 or more")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("wanted more than 0, at most 1")
    return value


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _sizes(text: str) -> list[int]:
    return [_one_or_more(part) for part in text.split(",")]


def _fractions(text: str) -> list[float]:
    return [_fraction(part) for part in text.split(",")]
