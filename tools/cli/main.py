# SPDX-License-Identifier: Apache-2.0
"""The parser and the one place where the command ends.

Verbs are modules of this package with a function run(args) -> exit code; only the one asked for is
imported, so that `kvshm --help` and completion stay fast.
"""
from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from .failures import INTERRUPTED, PIPE_CLOSED, USAGE, Failure
from .replay_options import replay_options

EXIT_CODES = """\
exit codes:
  0 fine          1 found something (broken, or work to do)   2 usage
  3 no such arena 4 no permission                             5 other layout, damaged or foreign
  6 gave up waiting (unfinished, busy, in use)                130 interrupted"""

# shtab's mark for an argument that a shell function of ours completes.
_ARENAS = {"bash": "_kvshm_arenas", "zsh": "_kvshm_arenas", "tcsh": "f"}
_PREAMBLE = {
    "bash": '_kvshm_arenas() { local f; for f in /dev/shm/kvshm."$1"*; do '
            '[ -e "$f" ] && echo "${f#/dev/shm/kvshm.}"; done; }',
    "zsh": '_kvshm_arenas() { local -a n; n=(/dev/shm/kvshm.*(N)); compadd -- '
           '"${n[@]#/dev/shm/kvshm.}"; }',
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Failure(USAGE, "", message, f"`{self.prog} --help` shows how")


class _Completion(argparse.Action):
    """--print-completion SHELL, with shtab loaded only then."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> NoReturn:
        try:
            import shtab
        except ImportError:
            raise Failure(USAGE, "", "completion needs the package shtab",
                          "pip install 'kvshm[tools]'") from None
        print(shtab.complete(parser, shell=rest[1], preamble=_PREAMBLE.get(rest[1], "")))
        parser.exit()


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> NoReturn:
        from importlib.metadata import version

        print("kvshm", version("kvshm"))
        parser.exit()


def make_parser() -> _Parser:
    parser = _Parser(prog="kvshm", description="Looks into and after kvshm arenas.",
                     epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-V", "--version", nargs=0, action=_Version,
                        help="show the version and exit")
    parser.add_argument("--print-completion", choices=["bash", "zsh", "tcsh"], action=_Completion,
                        metavar="SHELL", help="print a completion script: bash, zsh or tcsh")
    verbs = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True)

    common = _Parser(add_help=False)
    common.add_argument("-j", "--json", action="store_true", help="one JSON document, not text")
    common.add_argument("-q", "--quiet", action="store_true", help="only errors and the exit code")
    common.add_argument("--no-color", action="store_true", help="as the variable NO_COLOR")

    def verb(name: str, module: str, text: str, one: bool = True) -> _Parser:
        made = verbs.add_parser(name, parents=[common], help=text, description=text)
        made.set_defaults(module=module)
        if one:
            made.add_argument("--dir", metavar="DIR", help="where the arena lies, if not on the "
                              "shm mount")
        return made

    def arena(made: argparse.ArgumentParser, required: bool = False) -> None:
        text = "its name" if required else "its name; may be left out if there is just one"
        made.add_argument("arena", metavar="ARENA", nargs=None if required else "?",
                          help=text).complete = _ARENAS  # type: ignore[attr-defined]

    made = verb("list", "listing", "which arenas are there, how full, who is attached", one=False)
    made.add_argument("--dir", metavar="DIR", action="append", default=[],
                      help="a directory to look into beside the shm mount; may be repeated")

    made = verb("stat", "stat", "everything about one arena")
    arena(made)
    made.add_argument("--interval", type=_positive, metavar="SECONDS",
                      help="one line now and then: what changed")
    made.add_argument("--count", type=_count, metavar="N",
                      help="with --interval: end after N lines")

    made = verb("verify", "verify", "are all invariants true?")
    arena(made)
    made.add_argument("--quiet-arena", action="store_true",
                      help="nobody is working: what living processes have in hand is a fault too")
    made.add_argument("--all", action="store_true", help="every broken block, not just the first")
    made.add_argument("--core", action="store_true",
                      help="also attach, and run the library's own check")
    made.add_argument("--tier", metavar="FILE", nargs="+", action="extend",
                      help="the files of a tier instead: each block's bytes; with ARENA (before "
                      "it) against what that arena says of them, too")

    made = verb("explain", "explain", "the first key of a prompt that is missing, and why")
    arena(made)
    source = made.add_mutually_exclusive_group(required=True)
    source.add_argument("--keys", metavar="FILE", help="keys in the prompt's order, 32 hexadecimal "
                        "digits each; - = standard input")
    source.add_argument("--prompt", metavar="FILE", help="token ids, as a JSON list or one a word; "
                        "text with --tokenizer")
    made.add_argument("--tokenizer", metavar="DIR", help="a model's folder or a tokenizer.json: "
                      "the prompt is text (needs the package tokenizers)")
    made.add_argument("--salt", metavar="TEXT", help="of the prompt, as vLLM's cache_salt")
    made.add_argument("--identity", metavar="JSON", help="of who missed: compared with the "
                      "arena's; @FILE reads it from there")

    made = verb("reap", "reap", "what dead processes left; --yes gives it back")
    arena(made)
    made.add_argument("--yes", action="store_true", help="do it")

    made = verb("quota", "quota", "what tenants have and may have; how many blocks may be pinned")
    arena(made)
    made.add_argument("--tenant", metavar="NAME", help="this one: its name or its number")
    made.add_argument("--blocks", metavar="N", help="its quota: blocks, a share as 10%%, or none")
    made.add_argument("--weight", metavar="N", help="its weight where the arena is full, or none")
    made.add_argument("--pins", metavar="N", help="blocks that may have priority 100: a number, a "
                      "share as 10%%, or none for any number")

    made = verb("pin", "pin", "keep blocks from being evicted (priority 100)")
    arena(made)
    _which(made, "keys, 32 hexadecimal digits each; - = standard input", "all of its blocks")
    made.add_argument("--seconds", type=_positive, metavar="SECONDS",
                      help="for that time; then the default priority returns")

    made = verb("unpin", "pin", "let pinned blocks be evicted again")
    arena(made)
    _which(made, "keys, 32 hexadecimal digits each; - = standard input", "what of it is pinned")

    made = verb("warmup", "warmup", "bring prompts from the disk into memory, or compute them")
    arena(made)
    source = made.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompts", metavar="FILE", help="texts, one a line or JSON lines; needs "
                        "--tokenizer or --engine; - = standard input")
    source.add_argument("--tokens", metavar="FILE", help="token ids: a JSON list a line, or one a "
                        "word with an empty line between two prompts")
    source.add_argument("--keys", metavar="FILE", help="keys, 32 hexadecimal digits each, in the "
                        "same forms")
    made.add_argument("--tokenizer", metavar="DIR", help="a model's folder or a tokenizer.json, "
                      "for --prompts (needs the package tokenizers)")
    made.add_argument("--salt", metavar="TEXT", help="of all prompts, as vLLM's cache_salt")
    made.add_argument("--identity", metavar="JSON", help="to derive keys under, in place of the "
                      "arena's; @FILE reads it from there")
    made.add_argument("--tier", metavar="FILE", action="append", default=[],
                      help="the tier's file, in place of what the arena names; may be repeated")
    made.add_argument("--limit", type=_watermark, default=0.9, metavar="SHARE",
                      help="of the arena that may be held by it: 90%% unless told otherwise, or a "
                      "number of blocks")
    made.add_argument("--engine", metavar="URL", help="also send each prompt once through this "
                      "engine (POST URL/v1/completions), for one token")
    made.add_argument("--model", metavar="NAME", help="as that engine calls it; otherwise its "
                      "first")
    made.add_argument("--engine-key", metavar="FILE", help="the key that it asks for")
    made.add_argument("--timeout", type=_positive, default=600.0, metavar="SECONDS",
                      help="of all of it together (600)")

    made = verb("rm", "remove", "remove an arena")
    arena(made, required=True)
    made.add_argument("--force", action="store_true",
                      help="also while processes are attached, and what is no sound arena")
    made.add_argument("--dry-run", action="store_true", help="say what would be done")

    made = verb("agent", "agent", "move blocks between memory and disk for all, or keep victims "
                "marked by a policy of your own")
    arena(made)
    made.add_argument("--tier", metavar="FILE", action="append", default=[],
                      help="open this tier, and stand for mover of it; may be repeated")
    made.add_argument("--tier-size", metavar="SIZE", help="of all its files, as 500GiB; otherwise "
                      "what they have")
    made.add_argument("--write", choices=["through", "lazy", "watermark", "release", "idle", "off"],
                      help="what goes down, and when (docs/tier.md)")
    made.add_argument("--tier-option", metavar="NAME=VALUE", action="append", default=[],
                      help="any other of docs/tier.md, as admit=2; may be repeated")
    made.add_argument("--policy", metavar="MODULE:NAME", help="package.module:Name, "
                      "or lru, lfu, freqage (docs/policies.md shows how to write one)")
    made.add_argument("--low", type=_watermark, metavar="SHARE",
                      help="refill when fewer blocks are free or marked: 2%% of the arena unless "
                      "told otherwise, or a number of blocks; --write watermark: write while fewer "
                      "are free (25%%)")
    made.add_argument("--high", type=_watermark, default=0.05, metavar="SHARE",
                      help="refill up to so many (5%%)")
    made.add_argument("--cpu", type=_share, default=0.1, metavar="SHARE",
                      help="of one core at most (10%%); meanwhile the arena's own policy goes on")
    made.add_argument("--interval", type=_positive, default=10.0, metavar="SECONDS",
                      help="one line of what was done at most every so often (10)")
    made.add_argument("--once", action="store_true",
                      help="one look, one refill if it is needed, and end")

    made = verb("record", "record", "merge logs of look-ups into one trace for `kvshm replay`",
                one=False)
    made.description = ("Makes one trace of the logs that engines write with the option trace=FILE "
                        "(docs/vllm.md): sorted by time, blocks and tenants numbered anew, nothing "
                        "else of them kept. An arena itself keeps no record of look-ups.")
    made.add_argument("logs", metavar="LOG", nargs="+", help="a file that engines wrote")
    made.add_argument("--out", metavar="FILE", help="write there, not to standard output")
    made.add_argument("--format", choices=["lookups", "mooncake"], default="lookups",
                      help="kvshm's own (default), or Mooncake's: no tenants, milliseconds, no "
                      "output tokens, only full blocks (tell `kvshm replay` --block-tokens)")
    made.add_argument("--seconds", type=_positive, metavar="S", help="only the first S seconds")

    made = verb("doctor", "doctor", "what this host, container and user grant")
    made.add_argument("--tier-dir", metavar="DIR", help="where a tier file would lie")

    made = verb("replay", "replay", "a recorded load through a real arena, beside what is "
                "possible", one=False)
    replay_options(made)
    return parser


def _which(made: argparse.ArgumentParser, keys: str, tenant: str) -> None:
    which = made.add_mutually_exclusive_group()
    which.add_argument("--keys", metavar="FILE", help=keys)
    which.add_argument("--tenant", metavar="NAME", help=f"{tenant}: its name or its number")


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("wanted a positive number of seconds")
    return value


def _share(text: str) -> float:
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("wanted a share like 10% or 0.1")
    return value


def _watermark(text: str) -> float | int:
    """2% or 0.02: a share of the arena; 500: blocks."""
    return int(text) if text.isdigit() else _share(text)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("wanted 1 or more")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    try:
        args = make_parser().parse_args(argv)
        code: int = importlib.import_module("." + args.module, __package__).run(args)
        sys.stdout.flush()
        return code
    except Failure as e:
        print(e, file=sys.stderr)
        return e.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who read us has gone: no word about it, also not from the interpreter's last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
