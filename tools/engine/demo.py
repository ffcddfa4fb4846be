# SPDX-License-Identifier: Apache-2.0
"""tools/demo: engine workers on one arena, from the first request to a crash and a restart."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..environments import Absent
from . import prompts as prompts_file
from . import report, tokens
from .asking import DemoError
from .checks import run_checks
from .client import WorkerProcess
from .config import default_block_tokens, model_config
from .fleet import Fleet
from .progress import Progress
from .scenario import Plan, play
from .settings import ENQUEUE, IN_PLACE, MODES, OFF, VLLM, Settings

BUILT_IN = "built-in"
PAGE, RECORD, FILE_HEAD = 4096, 64, 1 << 20  # bytes: slots are rounded up to; beside each; once


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="tools/demo",
        description="Runs engine workers, each a process with a transformer of its own, on one "
        "arena; compares them with workers that share nothing; kills one; starts a fresh one. "
        "Exit status 0 if every check holds, 1 if one does not, 2 for a wrong call.",
    )
    p.add_argument("--engine", choices=(BUILT_IN, VLLM), default=BUILT_IN,
                   help="vllm: real vLLM processes with kvshm as their connector; the first time "
                   "their environment is made, minutes and 3.5 GB in the user's cache folder "
                   "(default built-in)")
    p.add_argument("--workers", type=int, default=2, help="processes, at least 2 (default 2)")
    p.add_argument("--prompts", type=Path, default=prompts_file.SHIPPED, metavar="FILE",
                   help="a system prompt and conversations (default: those that come with kvshm)")
    p.add_argument("--kv", choices=MODES, default=None,
                   help="in-place: the workers' KV is the arena; copy: each keeps its own cache "
                   "and copies blocks once; off: nothing is shared (default in-place)")
    p.add_argument("--tiny", action="store_true",
                   help="a model of 0.1 M parameters (vllm: 5 M), for tests")
    p.add_argument("--model", type=Path, default=None, metavar="DIR",
                   help="vllm: a local model (default: random weights, 109 M parameters)")
    p.add_argument("--tp", type=int, default=1, help="vllm: ranks of each worker (default 1)")
    size = p.add_mutually_exclusive_group()
    size.add_argument("--blocks", type=int, default=0, help="blocks of the arena (default: enough)")
    size.add_argument("--size", default="", help="bytes of the arena instead, as in 512MiB")
    p.add_argument("--tier", type=Path, default=None, metavar="FILE",
                   help="keep blocks on disk, too, in a file that is made for the demo; with fewer "
                   "--blocks than needed they come back from there (default: none)")
    p.add_argument("--layer-groups", type=int, default=1, metavar="N",
                   help="of a block, each loaded and computed by itself (default 1)")
    p.add_argument("--prefetch", action="store_true",
                   help="bring what requests in line need from the disk before their turn")
    p.add_argument("--block-tokens", type=int, default=0,
                   help="tokens of a block, and of a prefill chunk (default 64, tiny 16; vllm "
                   "32, and its chunks are of 512)")
    p.add_argument("--new-tokens", type=int, default=8, help="tokens of an answer (default 8)")
    p.add_argument("--references", type=int, default=0,
                   help="requests asked without reuse too (default 4, tiny 8)")
    p.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    p.add_argument("--dir", default=None, help="where the arena lies (default: the shm mount)")
    p.add_argument("--json", action="store_true", help="one JSON document on stdout")
    p.add_argument("--keep", action="store_true", help="leave the arena for inspection")
    return p


def check_call(p: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    for name, least in (("workers", 2), ("new_tokens", 1), ("blocks", 0), ("block_tokens", 0),
                        ("references", 0), ("tp", 1), ("layer_groups", 1)):
        if getattr(args, name) < least:
            p.error(f"--{name.replace('_', '-')} must be at least {least}")
    mine = "kv", "blocks", "seed", "tier", "layer_groups", "prefetch"
    strange = mine if args.engine == VLLM else ("model", "tp")
    for name in strange:
        if getattr(args, name) != p.get_default(name):
            p.error(f"--{name} is not for --engine {args.engine}")
    if args.tier is None and args.prefetch:
        p.error("--prefetch needs a --tier")
    if args.tier is not None and args.kv == OFF:
        p.error("--tier is not for --kv off")
    if args.tier is not None and args.tier.exists():
        p.error(f"--tier: {args.tier} is there already")
    layers = model_config(args.tiny, args.seed).layers
    if layers % args.layer_groups:
        p.error(f"--layer-groups: the model's {layers} layers are not {args.layer_groups} groups")
    args.kv = VLLM if args.engine == VLLM else args.kv or IN_PLACE


def blocks_wanted(prompts: prompts_file.Prompts, block_tokens: int, new_tokens: int) -> int:
    """So many that nothing is evicted: the system prompt twice (once for the killed worker), and
    for each turn what it adds, rounded up, plus a block in progress."""
    system = len(tokens.system_turn(prompts.system)) // block_tokens + 1
    blocks = 2 * system + 8
    for conversation in prompts.conversations:
        for turn in conversation.turns:
            added = len(tokens.user_turn(turn)) + new_tokens + 1
            blocks += added // block_tokens + 2
    return blocks


def main(argv: list[str] | None = None) -> int:
    p = parser()
    args = p.parse_args(argv)
    check_call(p, args)
    try:
        prompts = prompts_file.load(args.prompts)
    except prompts_file.PromptsError as error:
        p.error(str(error))
    progress = Progress()
    try:
        return run(args, prompts, progress)
    except (Absent, DemoError) as error:
        progress.close()
        print(f"tools/demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        progress.close()
        return 130


@contextlib.contextmanager
def built_in(
    args: argparse.Namespace, prompts: prompts_file.Prompts, progress: Progress
) -> Iterator[tuple[Fleet, Any]]:
    """Its workers, yet to be started, and the arena's Host; None with --kv off."""
    settings = Settings(
        kv=args.kv, tiny=args.tiny, seed=args.seed, directory=args.dir,
        block_tokens=args.block_tokens or default_block_tokens(args.tiny),
        layer_groups=args.layer_groups, prefetch=ENQUEUE if args.prefetch else OFF,
    )
    host = None
    if settings.kv != OFF:
        from .host import Host

        wanted = args.layer_groups * blocks_wanted(prompts, settings.block_tokens, args.new_tokens)
        host = Host.create(settings, args.blocks or (0 if args.size else wanted), args.size)
        settings = replace(settings, arena=host.name)
        if args.tier is not None:
            slot = -(-settings.part_bytes // PAGE) * PAGE + RECORD
            settings = replace(settings, tier=(str(args.tier.absolute()),),
                               tier_size=str(2 * wanted * slot + FILE_HEAD))
    try:
        yield Fleet(settings.kv, partial(WorkerProcess, settings), tokens, settings.block_tokens,
                    args.new_tokens, progress), host
    finally:
        if host is not None:
            host.close(args.keep)
        if args.tier is not None and not args.keep:
            args.tier.unlink(missing_ok=True)


def run(args: argparse.Namespace, prompts: prompts_file.Prompts, progress: Progress) -> int:
    engines = built_in
    if args.engine == VLLM:
        from ..vllm.demo import engines
    plan = Plan(args.workers, args.references or (8 if args.tiny else 4))
    with contextlib.ExitStack() as stack:
        stack.callback(progress.close)
        fleet, host = stack.enter_context(engines(args, prompts, progress))
        outcome = play(plan, prompts, fleet, host)
        checks = run_checks(outcome, args.tiny)
        arena = host.summary() if host is not None else {}
    if args.json:
        options = {name: str(value) if isinstance(value, Path) else value
                   for name, value in vars(args).items()}
        print(report.document(outcome, checks, options, arena))
    else:
        print(report.text(outcome, checks, arena))
    if args.keep and host is not None:
        where = f" --dir {host.directory}" if host.directory else ""
        print(f"kept: kvshm stat {host.name}{where}; remove it with kvshm rm {host.name}{where}",
              file=sys.stderr)
    return 0 if all(check.holds for check in checks.values()) else 1


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt  # so that workers end and the arena goes, as after ctrl-C


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)
    sys.exit(main())
