# SPDX-License-Identifier: Apache-2.0
"""tools/demo: engine workers on one arena, from the first request to a crash and a restart."""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path

from . import prompts as prompts_file
from . import report, tokens
from .checks import run_checks
from .client import WorkerError
from .config import default_block_tokens
from .fleet import Fleet
from .progress import Progress
from .scenario import Plan, play
from .settings import IN_PLACE, MODES, OFF, Settings


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="tools/demo",
        description="Runs engine workers, each a process with a transformer of its own, on one "
        "arena; compares them with workers that share nothing; kills one; starts a fresh one. "
        "Exit status 0 if every check holds, 1 if one does not, 2 for a wrong call.",
    )
    p.add_argument("--workers", type=int, default=2, help="processes, at least 2 (default 2)")
    p.add_argument("--prompts", type=Path, default=prompts_file.SHIPPED, metavar="FILE",
                   help="a system prompt and conversations (default: those that come with kvshm)")
    p.add_argument("--kv", choices=MODES, default=IN_PLACE,
                   help="in-place: the workers' KV is the arena; copy: each keeps its own cache "
                   "and copies blocks once; off: nothing is shared (default in-place)")
    p.add_argument("--tiny", action="store_true", help="a model of 0.1 M parameters, for tests")
    size = p.add_mutually_exclusive_group()
    size.add_argument("--blocks", type=int, default=0, help="blocks of the arena (default: enough)")
    size.add_argument("--size", default="", help="bytes of the arena instead, as in 512MiB")
    p.add_argument("--block-tokens", type=int, default=0,
                   help="tokens of a block, and of a prefill chunk (default 64, tiny 16)")
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
                        ("references", 0)):
        if getattr(args, name) < least:
            p.error(f"--{name.replace('_', '-')} must be at least {least}")


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
    settings = Settings(
        kv=args.kv, tiny=args.tiny, seed=args.seed, directory=args.dir,
        block_tokens=args.block_tokens or default_block_tokens(args.tiny),
    )
    plan = Plan(args.workers, args.references or (8 if args.tiny else 4))
    progress = Progress()
    try:
        return run(args, prompts, settings, plan, progress)
    except WorkerError as error:
        progress.close()
        print(f"tools/demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        progress.close()
        return 130


def run(
    args: argparse.Namespace,
    prompts: prompts_file.Prompts,
    settings: Settings,
    plan: Plan,
    progress: Progress,
) -> int:
    host = None
    if settings.kv != OFF:
        from .host import Host, HostError

        blocks = args.blocks
        if not blocks and not args.size:
            blocks = blocks_wanted(prompts, settings.block_tokens, args.new_tokens)
        try:
            host = Host(settings, blocks, args.size)
        except HostError as error:
            print(f"tools/demo: {error}", file=sys.stderr)
            return 1
        settings = replace(settings, arena=host.name)
    try:
        fleet = Fleet(settings, args.new_tokens, progress)
        outcome = play(plan, prompts, fleet, host)
        checks = run_checks(outcome, settings.tiny)
        arena = host.summary() if host is not None else {}
    finally:
        progress.close()
        if host is not None:
            host.close(args.keep)
    if args.json:
        print(report.document(outcome, checks, vars(args) | {"prompts": str(args.prompts)}, arena))
    else:
        print(report.text(outcome, checks, arena))
    if args.keep and host is not None:
        where = f" --dir {settings.directory}" if settings.directory else ""
        print(f"kept: kvshm stat {host.name}{where}; remove it with kvshm rm {host.name}{where}",
              file=sys.stderr)
    return 0 if all(check.holds for check in checks.values()) else 1


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt  # so that workers end and the arena goes, as after ctrl-C


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)
    sys.exit(main())
