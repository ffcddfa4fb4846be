# SPDX-License-Identifier: Apache-2.0
"""tools/prove: the command line."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import report
from .child import StageError
from .progress import Progress
from .stages import QUICK, STAGES, Scale, Work
from .verdict import judge


def main(argv: Sequence[str] | None = None, root: Path | None = None) -> int:
    root = root or Path(__file__).resolve().parent.parent.parent
    args = _parser().parse_args(argv)
    scale = QUICK if args.quick else Scale()
    work = Work(root, (args.build or root / "build" / "prove").resolve(), scale)
    wanted = [name for name in STAGES if name in args.stage] if args.stage else list(STAGES)
    if args.build and not args.stage:
        wanted.remove("build")
    progress = Progress([(name, STAGES[name].brief if args.quick else STAGES[name].full)
                         for name in wanted])
    given: dict[str, Any] = {}
    errors: dict[str, str] = {}
    seconds: dict[str, float] = {}
    try:
        for name in wanted:
            progress.start(name)
            began = time.monotonic()
            try:
                given[name] = STAGES[name].run(work, progress.say)
            except StageError as e:
                errors[name] = str(e)
            seconds[name] = time.monotonic() - began
            if name in errors and name == "build":
                break
    except KeyboardInterrupt:
        return 130
    finally:
        progress.close()
    # The short form has too few deaths for every step.
    verdict = judge(wanted, given, errors, scale.kills, scale.fuzz_executions, not args.quick)
    doc = report.document(report.machine(root), seconds, given, verdict)
    command = " ".join(["tools/prove", *(argv if argv is not None else sys.argv[1:])])
    if args.out:
        report.write(doc, args.out, command)
    print(json.dumps(doc) if args.json else report.table(doc))
    for why in verdict.failures:
        print(f"tools/prove: {why}", file=sys.stderr)
    return 0 if verdict.holds else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/prove",
        description="Any process may be killed at any instruction: models, a kill at every step, "
                    "100,000 kills at random, negative controls, fuzzers. Exit status 0 only if "
                    "everything that was asked for holds.",
        epilog="tools/test has the same in short: tests/model, the native tests sweep and torture, "
               "the controls and the fuzzers' smoke test.")
    parser.add_argument("--quick", action="store_true",
                        help="2,000 kills, short sweep and fuzzing: shows that it works")
    parser.add_argument("--stage", action="append", choices=list(STAGES),
                        help="only this one; may be repeated")
    parser.add_argument("--json", action="store_true", help="one JSON document in place of a table")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help="also keep the result as FILE.json and FILE.md")
    parser.add_argument("--build", type=Path, metavar="DIR",
                        help="a build folder that has the test programs; nothing is built")
    return parser
