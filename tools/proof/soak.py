# SPDX-License-Identifier: Apache-2.0
"""tools/soak: the torture for hours, a line a minute."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .child import StageError, document
from .stages import Scale, Work, build


class Minutes:
    """Of the torture's lines, one a minute."""

    def __init__(self, every: float = 60.0) -> None:
        self._every = every
        self._next = time.monotonic() + every

    def say(self, line: str) -> None:
        if time.monotonic() >= self._next or line.startswith(("VIOLATION", "seed")):
            self._next += self._every
            print(line, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None, root: Path | None = None) -> int:
    root = root or Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(
        prog="tools/soak",
        description="Worker processes on shared arenas, killed and replaced for hours. One JSON "
                    "document at the end. Exit status: 0; 1 for a violation, whose arena is kept.")
    parser.add_argument("--hours", type=float, default=1.0, metavar="N")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="at once")
    parser.add_argument("--build", type=Path, metavar="DIR",
                        help="a build folder that has the test programs; nothing is built")
    args = parser.parse_args(argv)
    work = Work(root, (args.build or root / "build" / "prove").resolve(), Scale())
    seconds = args.hours * 3600
    try:
        if not args.build:
            build(work, lambda line: None)
        result = document(
            [work.program("kvshm_torture"), "--kills", "1000000000000", "--seconds",
             f"{seconds:.0f}", "--workers", str(args.workers)], seconds + 300, Minutes().say)
    except StageError as e:
        print(f"tools/soak: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result))
    return 1 if result["violations"] else 0
