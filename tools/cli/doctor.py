# SPDX-License-Identifier: Apache-2.0
"""`kvshm doctor`: hands over to kvshm.tools.doctor."""
from __future__ import annotations

import argparse
import contextlib
import os


def run(args: argparse.Namespace) -> int:
    from ..doctor import main

    argv = ["--json"] if args.json else []
    for option, value in (("--dir", args.dir), ("--tier-dir", args.tier_dir)):
        if value:
            argv += [option, value]
    if not args.quiet:
        return main(argv)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return main(argv)
