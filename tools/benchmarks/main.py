# SPDX-License-Identifier: Apache-2.0
"""tools/bench: the command line."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from . import (arenas, e_hits, fio, gather, machine, p1_lookup, p2_match, p3_copy, p4_insert,
               p5_disk, p6_attach, p8_reap, p9_size, report)
from .bench import QUICK, Bench, Scale
from .connector import v1_request, v2_transfers
from .mounts import mounted
from .mover import breakeven, calls, layers, overlap
from .native import BenchError
from .peers import measure, table
from .peers.catalog import PEERS
from .progress import Progress
from .rows import Row, Target

MEASURES: dict[str, tuple[str, Callable[[Bench], list[Row]]]] = {
    "P1": (p1_lookup.TITLE, p1_lookup.measure),
    "P2": (p2_match.TITLE, p2_match.measure),
    "P3": (p3_copy.TITLE, p3_copy.measure),
    "P4": (p4_insert.TITLE, p4_insert.measure),
    "P6": (p6_attach.TITLE, p6_attach.measure),
    "P8": (p8_reap.TITLE, p8_reap.measure),
    "P9": (p9_size.TITLE, p9_size.measure),
}
MOVER = ("M1", "M2", "M3", "gather")
VLLM: dict[str, tuple[str, Callable[[Bench], list[Row]]]] = {
    "V1": (v1_request.TITLE, v1_request.measure),
    "V2": (v2_transfers.TITLE, v2_transfers.measure),
}


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = args.run
    try:
        with arenas.swept():
            return run(args)
    except KeyboardInterrupt:
        print("tools/bench: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _micro(args: argparse.Namespace) -> int:
    wanted = args.only or list(MEASURES)
    scale = QUICK if args.quick else Scale()
    if args.blocks:
        scale = replace(scale, blocks=args.blocks)
    if args.rounds:
        scale = replace(scale, rounds=args.rounds, kills=min(args.rounds, scale.kills))
    return _targets(args, "micro", {name: MEASURES[name] for name in wanted}, scale,
                    str(args.native))


def _gather(args: argparse.Namespace) -> int:
    scale = replace(QUICK, copy_blocks=12) if args.quick else Scale()
    if args.rounds:
        scale = replace(scale, rounds=args.rounds)
    return _targets(args, "gather", {"gather": (gather.TITLE, gather.measure)}, scale,
                    str(args.native))


def _vllm(args: argparse.Namespace) -> int:
    scale = QUICK if args.quick else Scale()
    if args.rounds:
        scale = replace(scale, rounds=args.rounds)
    measures = dict(VLLM)
    if not args.without_peers:
        measures["LMCache"] = (v1_request.BESIDE, v1_request.beside)
    return _targets(args, "vllm", measures, scale)


def _targets(args: argparse.Namespace, kind: str,
             measures: dict[str, tuple[str, Callable[[Bench], list[Row]]]], scale: Scale,
             native: str = "", **options: Any) -> int:
    progress = Progress(list(measures))
    try:
        with mounted() as mounts:
            bench = Bench(native, mounts, scale, progress)
            targets = []
            for name, (title, take) in measures.items():
                progress.part(name)
                targets.append(Target(name, title, tuple(take(bench))))
    except BenchError as e:
        progress.close()
        print(f"tools/bench: {e}", file=sys.stderr)
        return 2
    finally:
        progress.close()
    about = machine.facts(args.root)
    options = asdict(scale) | {"quick": args.quick} | options
    rows = [one for target in targets for one in target.rows]
    more: dict[str, Any] = {}
    if kind == "disk":
        more = {"ratio_to_fio": p5_disk.ratios(rows)}
    elif kind == "gather":
        more = {"gather_min_ratio": gather.min_ratio(rows)}
    elif kind == "mover":
        more = headline(targets)
    table = report.table(about, targets)
    print(report.document(kind, about, options, targets, **more) if args.json else table)
    if kind in ("vllm", "eviction", "disk", "gather", "mover") and args.out is not None:
        args.out.write_text(report.page(f"tools/bench {kind}", table), encoding="utf-8")
    return int(any(target.holds is False for target in targets))


def _eviction(args: argparse.Namespace) -> int:
    measures: dict[str, tuple[str, Callable[[Bench], list[Row]]]] = {
        name: (f"{load.trace}: {e_hits.TITLE}", partial(e_hits.measure, load=load))
        for name, load in e_hits.MEASURES.items() if not args.only or name in args.only}
    return _targets(args, "eviction", measures, Scale())


def _disk(args: argparse.Namespace) -> int:
    try:
        fio.wanted()
    except BenchError as e:
        print(f"tools/bench: {e}", file=sys.stderr)
        return 2
    disk = p5_disk.Disk(
        args.dir or p5_disk.default_folder(), (1 << 30) if args.quick else (4 << 30),
        args.rounds or (3 if args.quick else 16), 300 if args.quick else 1000,
        100_000 if args.quick else 1_000_000, not args.without_peers)
    return _targets(args, "disk", {"P5": (p5_disk.TITLE, partial(p5_disk.measure, disk=disk))},
                    Scale(rounds=disk.rounds), str(args.native), fio=fio.version(),
                    file_system=p5_disk.file_system(disk.folder), file_bytes=disk.file_bytes,
                    round_ms=disk.ms, slots=disk.slots)


def headline(targets: Sequence[Target]) -> dict[str, float | None]:
    """By the names that the JSON document of the mover has; of several the worst."""
    rows = {target.name: list(target.rows) for target in targets}
    hidden = [r.value for r in rows.get("M2", []) if r.limit is not None and r.value is not None]
    return {"overlap": next((r.value for r in rows.get("M1", []) if r.what == overlap.UP), None),
            "layerwise_hidden": min(hidden, default=None),
            "gather_min_ratio": gather.min_ratio(rows.get("gather", []))}


def _mover(args: argparse.Namespace) -> int:
    disk = args.dir or p5_disk.default_folder()
    rounds = args.rounds or (5 if args.quick else 9)
    nbytes = (64 << 20) if args.quick else (256 << 20)
    size = layers.QUICK if args.quick else layers.Size()
    load = calls.Load(ms=1000) if args.quick else calls.Load()
    with ExitStack() as stack:
        try:
            folder = p5_disk.scratch(stack, disk, 4 * nbytes)
        except BenchError as e:
            print(f"tools/bench: {e}", file=sys.stderr)
            return 2
        measures: dict[str, tuple[str, Callable[[Bench], list[Row]]]] = {
            "M1": (overlap.TITLE, lambda bench: overlap.measure(
                bench, folder, nbytes, rounds,
                breakeven.Cost(args.tokens_per_second, args.token_bytes))),
            "M2": (layers.TITLE, lambda bench: layers.measure(bench, folder, size, rounds)),
            "M3": (calls.TITLE, lambda bench: calls.measure(bench, folder, load, rounds)),
            "gather": (gather.TITLE, gather.measure),
        }
        scale = replace(QUICK, copy_blocks=12) if args.quick else Scale()
        return _targets(args, "mover", {name: measures[name] for name in args.only or measures},
                        replace(scale, rounds=rounds), str(args.native),
                        file_system=p5_disk.file_system(disk))


def _peers(args: argparse.Namespace) -> int:
    wanted = args.only or list(PEERS)
    scale = measure.QUICK if args.quick else measure.Scale()
    if args.rounds:
        scale = replace(scale, rounds=args.rounds)
    progress = Progress([f"{block} tokens a block" for block in scale.blocks])
    try:
        result = measure.measure(wanted, scale, progress)
    finally:
        progress.close()
    about = machine.facts(args.root)
    options: dict[str, Any] = asdict(scale) | {"quick": args.quick}
    print(table.document(about, options, wanted, scale, result) if args.json else
          table.table(about, wanted, scale, result))
    missing = any(cell.value is None and cell.source in PEERS[cell.peer].sources
                  for cell in result.cells)
    return 2 if missing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/bench", description="What kvshm costs, beside its references in one run.")
    commands = parser.add_subparsers(required=True)
    micro = commands.add_parser(
        "micro", help="look-up, match, copy, insert, attach, reaping, sizes",
        description="Measures the targets P1-P4, P6, P8 and P9. Exit status: 0 if those that "
                    "could be measured hold, 1 if one is broken, 2 if it could not be measured.")
    micro.add_argument("--json", action="store_true", help="one JSON document in place of a table")
    micro.add_argument("--only", type=_some_of(MEASURES), metavar="P1,P2,...",
                       help="these targets only")
    micro.add_argument("--quick", action="store_true",
                       help="a tenth of the blocks and few rounds: shows that it works")
    micro.add_argument("--blocks", type=_blocks, metavar="N",
                       help="of the larger arenas, in place of 1,000,000; P2 takes up to 10 times "
                            "as many")
    micro.add_argument("--rounds", type=_rounds, metavar="N",
                       help="samples of each figure, in place of 10")
    micro.add_argument("--native", type=Path, required=True, help=argparse.SUPPRESS)
    rows = commands.add_parser(
        "gather", help="an engine's rows into blocks and back, by layout",
        description="Copies between engine layouts and blocks, against the best streaming loop of "
                    "the same run, and beside torch's indexing. Exit status: 0 if the target "
                    "holds, 1 if it is broken, 2 if it could not be measured.")
    rows.add_argument("--json", action="store_true", help="one JSON document in place of a table")
    rows.add_argument("--quick", action="store_true", help="few rounds: shows that it works")
    rows.add_argument("--rounds", type=_rounds, metavar="N",
                      help="samples of each figure, in place of 10")
    rows.add_argument("--out", type=Path, metavar="FILE", help="also keep the table as this page")
    rows.add_argument("--native", type=Path, required=True, help=argparse.SUPPRESS)
    peers = commands.add_parser(
        "peers", help="a look-up beside LMCache, Mooncake and Redis",
        description="Look-up + pin of a prompt from keys, the engine's block hashes and token "
                    "ids, beside other caches. Each is installed, once, in an environment of its "
                    "own in the user's cache folder. Exit status: 0, or 2 if one of them could "
                    "not be had or measured; why stands in the table.")
    peers.add_argument("--json", action="store_true", help="one JSON document in place of tables")
    peers.add_argument("--only", type=_peer_names, metavar=",".join(PEERS),
                       help="these only, and kvshm")
    peers.add_argument("--quick", action="store_true",
                       help="small prompts and few rounds: shows that it works")
    peers.add_argument("--rounds", type=_rounds, metavar="N",
                       help="samples of each figure, in place of 9")
    vllm = commands.add_parser(
        "vllm", help="what the connector for vLLM costs its scheduler and a worker",
        description="Keys, look-up and holds of a prompt of 100,000 tokens beside LMCache's, and "
                    "a worker's copies; vLLM itself is not needed. Exit status: 0 if the targets "
                    "hold, 1 if one is broken, 2 if it could not be measured.")
    vllm.add_argument("--json", action="store_true", help="one JSON document in place of a table")
    vllm.add_argument("--quick", action="store_true", help="few rounds: shows that it works")
    vllm.add_argument("--rounds", type=_rounds, metavar="N",
                      help="samples of each figure, in place of 10")
    vllm.add_argument("--without-peers", action="store_true",
                      help="not beside LMCache, which is installed for it once")
    vllm.add_argument("--out", type=Path, metavar="FILE", help="also keep the table as this page")
    eviction = commands.add_parser(
        "eviction", help="hit ratios of the policies on recorded traces",
        description="Every policy through a real arena, on traces that are looked for in the "
                    "folders of KVSHM_TRACES. Exit status: 0 if the targets hold, 1 if one is "
                    "broken, 2 if it could not be measured.")
    eviction.add_argument("--json", action="store_true", help="one JSON document, not a table")
    eviction.add_argument("--only", type=_some_of(e_hits.MEASURES), metavar="E1,E2,...",
                          help="these traces only")
    eviction.add_argument("--out", type=Path, metavar="FILE",
                          help="also keep the table as this page")
    eviction.set_defaults(quick=False)
    disk = commands.add_parser(
        "disk", help="the NVMe tier beside fio and LMCache's local disk",
        description="P5: transfers and checksums of the tier beside fio and LMCache's local disk, "
                    "in turn, and how long the tier's records take to be read back after a "
                    "reboot. Exit status: 0 if the target holds, 1 if it is broken, 2 if it could "
                    "not be measured.")
    disk.add_argument("--json", action="store_true", help="one JSON document in place of a table")
    disk.add_argument("--dir", type=Path, metavar="DIR",
                      help="of the files that are read and written, three of 4 GiB at most, "
                           "removed in the end; default: where temporary files go, on a disk")
    disk.add_argument("--quick", action="store_true",
                      help="a small file and few rounds: shows that it works")
    disk.add_argument("--rounds", type=_rounds, metavar="N", help="pairs of rounds, in place of 16")
    disk.add_argument("--without-peers", action="store_true",
                      help="not beside LMCache, which is installed for it once")
    disk.add_argument("--out", type=Path, metavar="FILE", help="also keep the table as this page")
    disk.add_argument("--native", type=Path, required=True, help=argparse.SUPPRESS)
    mover = commands.add_parser(
        "mover", help="what moving blocks costs who computes meanwhile",
        description="M1: transfers between disk, memory and engine beside computing, of the longer "
                    "alone, and from how many tokens on loading is faster than computing. M2: how "
                    "much of a load the layer-wise pipeline hides. M3: an engine's calls while the "
                    "disk is slow. gather: as tools/bench gather. Exit status: 0 if the targets "
                    "hold, 1 if one is broken, 2 if it could not be measured.")
    mover.add_argument("--json", action="store_true", help="one JSON document in place of a table")
    mover.add_argument("--only", type=_some_of(MOVER), metavar="M1,M2,...",
                       help="these only")
    mover.add_argument("--dir", type=Path, metavar="DIR",
                       help="of the files that are read and written, 1 GiB at most, removed in the "
                            "end; default: where temporary files go, on a disk")
    mover.add_argument("--quick", action="store_true",
                       help="a tiny model, little data: shows that it works")
    mover.add_argument("--tokens-per-second", type=_positive, metavar="N",
                       default=breakeven.Cost.tokens_per_second,
                       help="that computing makes, for the break-even length; default: %(default)s")
    mover.add_argument("--token-bytes", type=_positive, metavar="N",
                       default=breakeven.Cost.token_bytes,
                       help="of KV a token, for the break-even length; default: %(default)s")
    mover.add_argument("--rounds", type=_rounds, metavar="N",
                       help="samples of each figure, in place of 9")
    mover.add_argument("--native", type=Path, required=True, help=argparse.SUPPRESS)
    mover.add_argument("--out", type=Path, metavar="FILE", help="also keep the table as this page")
    for one, run in ((micro, _micro), (rows, _gather), (peers, _peers), (vllm, _vllm),
                     (eviction, _eviction), (disk, _disk), (mover, _mover)):
        one.add_argument("--root", type=Path, help=argparse.SUPPRESS)
        one.set_defaults(run=run)
    return parser


def _peer_names(text: str) -> list[str]:
    try:
        return measure.names(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from None


def _some_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """A reader of names with commas between them, in the order of those that there are."""
    order = list(known)

    def read(text: str) -> list[str]:
        names = [name.strip().upper() for name in text.split(",") if name.strip()]
        for name in names:
            if name not in order:
                raise argparse.ArgumentTypeError(f"{name}: expected some of {', '.join(order)}")
        return [name for name in order if name in names]

    return read


def _positive(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1 << 40:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return int(text)


def _rounds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 to 1000")
    return int(text)


def _blocks(text: str) -> int:
    if not text.isdigit() or not 10_000 <= int(text) <= 100_000_000:
        raise argparse.ArgumentTypeError(f"{text}: expected 10000 to 100000000")
    return int(text)
