#!/usr/bin/env python3
"""Check the protocol's Spin models: every model must pass, every negative control must fail.

Each row of table.toml is an exhaustive search (or says that it is not); the quick set takes about
two minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from checker import Result, Row, check, load_table, marks_of, missing_tools  # noqa: E402

HERE = Path(__file__).resolve().parent


def line_of(result: Result) -> str:
    verdict = "as expected" if result.as_expected else "UNEXPECTED"
    wanted = f", wanted {result.row.fails}" if result.row.fails and not result.as_expected else ""
    return (
        f"{result.row.name:58} {result.got:4} {result.states:>10} states {result.seconds:6.1f} s"
        f"  {verdict:11} {result.why}{wanted}"
    )


def marks_missed(results: list[Result]) -> list[str]:
    """Marked steps that no passing row ever took: what they say would be said of nothing."""
    missed: set[str] = set()
    for file in {r.row.file for r in results if r.got == "ok"}:
        every = [r.unreached for r in results if r.row.file == file and r.got == "ok"]
        missed |= set.intersection(*(set(u) for u in every))
    return sorted(missed)


def run_rows(rows: list[Row], jobs: int, trail: bool) -> list[Result]:
    """Progress is one line a row on stderr."""
    results = []
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(check, row, trail) for row in rows]
        for done in as_completed(waiting):
            results.append(done.result())
            count = f"[{len(results)}/{len(rows)}]"
            print(count, line_of(results[-1]), file=sys.stderr, flush=True)
            if results[-1].trail:
                print(results[-1].trail)
    order = {row.name: n for n, row in enumerate(rows)}
    return sorted(results, key=lambda r: order[r.row.name])


def write_table(path: Path, results: list[Result], seconds: float, jobs: int) -> None:
    """The measured table that docs/ keeps."""
    passed = sum(r.row.expect == "ok" for r in results)
    head = [
        "Spin models of the protocol (tests/model), sequentially consistent; exhaustive where "
        "not said.",
        f"{passed} configurations must pass, {len(results) - passed} negative controls must fail;",
        f"{sum(r.as_expected for r in results)} of {len(results)} came out as expected in"
        f" {seconds:.0f} s, {jobs} at a time. Written by tests/model/run.py --out.",
        "",
        f"{'row':58} {'got':4} {'states':>10} {'depth':>6} {'search':>8}  failed check / control",
    ]
    body = [
        f"{r.row.name:58} {r.got:4} {r.states:>10} {r.depth:>6} {r.seconds:>6.1f} s"
        f"  {' / '.join(filter(None, (r.why, r.row.control)))}".rstrip()
        for r in results
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(head + body) + "\n")


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="the quick rows (default)")
    which.add_argument("--full", action="store_true", help="quick rows and larger configurations")
    which.add_argument("--only", metavar="TEXT", help="rows whose name contains TEXT")
    parser.add_argument("--jobs", type=int, default=2, choices=(1, 2), help="rows at a time")
    parser.add_argument("--trail", action="store_true", help="print the failing run of controls")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--out", type=Path, help="write the measured table to this file")
    parser.add_argument("--list", action="store_true", help="list rows and marks, run nothing")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    rows, controls = load_table()
    if args.only:
        rows = [r for r in rows if args.only in r.name]
    elif not args.full:
        rows = [r for r in rows if not r.full]
    if args.list:
        for row in rows:
            print(f"{row.name:58} {row.expect:4} {row.file:14} {' '.join(row.defines)}")
        for file in sorted({r.file for r in rows}):
            print(file, *(m for ms in marks_of(HERE / file).values() for m in ms))
        return 0
    if missing := missing_tools():
        print(f"models need {' and '.join(missing)} (apt-get install spin gcc)", file=sys.stderr)
        return 2
    if not rows:
        print("no such row", file=sys.stderr)
        return 2
    started = time.monotonic()
    results = run_rows(rows, args.jobs, args.trail)
    seconds = time.monotonic() - started
    wrong = [r.row.name for r in results if not r.as_expected]
    missed = [] if args.only else marks_missed(results)
    absent = [] if args.only else sorted(set(controls) - {r.row.control for r in results})
    if args.out:
        write_table(args.out, results, seconds, args.jobs)
    if args.json:
        document = {"seconds": round(seconds, 1), "unexpected": wrong, "steps_never_taken": missed}
        document |= {"controls_absent": absent, "rows": [r.to_dict() for r in results]}
        print(json.dumps(document, indent=1))
    for what, names in (("unexpected", wrong), ("never taken", missed), ("absent", absent)):
        if names:
            print(f"{what}: {', '.join(names)}", file=sys.stderr)
    print(f"{len(results)} rows, {seconds:.0f} s, {len(wrong)} unexpected", file=sys.stderr)
    return 1 if wrong or missed or absent else 0


if __name__ == "__main__":
    sys.exit(main())
