# SPDX-License-Identifier: Apache-2.0
"""Runs all probes, and the command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import container, direct, host, hugepages, limits, pinning, report, shm, uring
from .behaviours import behaviours
from .probe import Options, Probe

PROBES: list[Callable[[Options], Probe]] = [
    host.kernel, host.cpu, container.container, host.memory, host.numa,
    limits.memlock, limits.nofile,
    shm.shm, hugepages.settings, hugepages.huge_pages, pinning.pinning,
    uring.io_uring, direct.direct,
]


def run_all(options: Options | None = None) -> list[Probe]:
    options = options or Options()
    return [_run(probe, options) for probe in PROBES] + behaviours(options)


def _run(probe: Callable[[Options], Probe], options: Options) -> Probe:
    """A probe that meets the unforeseen must not hide what the others find."""
    try:
        return probe(options)
    except Exception as e:
        name = probe.__name__.replace("_", " ")
        return Probe(name, "skip", f"could not be tried: {type(e).__name__}: {e}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="kvshm doctor", description="What this host, container and user grant to kvshm.",
        epilog="Exit status: 0 fine (warnings included), 1 something fails.")
    parser.add_argument("-j", "--json", action="store_true", help="one document instead of a table")
    parser.add_argument("--dir", type=Path, default=Options.arenas, metavar="DIR",
                        help="where arenas lie (default: %(default)s)")
    parser.add_argument("--tier-dir", type=Path, default=Options().tier, metavar="DIR",
                        help="where a tier file would lie (default: %(default)s)")
    args = parser.parse_args(argv)
    probes = run_all(Options(args.dir, args.tier_dir))
    print(report.as_json(probes) if args.json else report.as_table(probes))
    return 1 if report.failed(probes) else 0


if __name__ == "__main__":
    sys.exit(main())
