# SPDX-License-Identifier: Apache-2.0
"""`kvshm replay`: a recorded load through a real arena, beside what is possible."""
from __future__ import annotations

import argparse
import signal
from typing import Any, NoReturn

import kvshm

from ..replay.crew import replay_together
from ..replay.drive import replay
from ..replay.failures import ReplayError
from ..replay.outcome import Outcome
from ..replay.progress import Progress
from ..replay.ratios import Ratios
from ..replay.references import REFERENCES, members, references
from ..replay.temporary import NEW_ARENA, remove_stale
from ..replay.trace import Trace
from . import text
from .failures import FINE, FOUND, USAGE, Failure, from_core
from .replay_compare import run_comparison
from .replay_input import about, capacities, only, trace_of


def run(args: argparse.Namespace) -> int:
    # The arena is to go also when the command is ended by a signal.
    before = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        remove_stale()
        return _run(args)
    except ReplayError as e:
        raise Failure(USAGE, "", str(e), e.remedy) from None
    except kvshm.Error as e:
        raise from_core(e, "replay") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)


def _run(args: argparse.Namespace) -> int:
    if args.compare is not None or args.compare_sharing:
        return run_comparison(args)
    policy = only(args.policy or [NEW_ARENA], "--policy")
    trace = trace_of(args)
    blocks = only(capacities(args, trace, (0.1,)), "--blocks or --fraction")
    with Progress(args.quiet) as progress:
        progress.stage(policy, trace.requests)
        if args.processes > 1 or args.kills:
            outcome = replay_together(trace, policy, blocks, args.processes, args.kills,
                                      args.seed, progress.advance)
        else:
            outcome = replay(trace, policy, blocks, progress.advance)
        found = {} if args.no_reference else references(trace, blocks, progress)
    if args.json:
        text.print_json(text.document("replay", **trace.about(), **outcome.document(trace),
                                      **members(found)))
    elif not args.quiet:
        print(_render(trace, outcome, found, text.wants_color(args.no_color)))
    return FOUND if outcome.broken else FINE


def _render(trace: Trace, outcome: Outcome, found: dict[str, Ratios], color: bool) -> str:
    shown = {f"{outcome.policy} (the arena)": outcome.ratios(trace)}
    shown |= {REFERENCES[name][0]: ratios for name, ratios in found.items()}
    rows = [[name, *(f"{100 * share:.2f}" for share in ratios)] for name, ratios in shown.items()]
    document = outcome.document(trace)
    cost = {name: document[name] for name in ("walk_steps_per_eviction", "headers_per_eviction")}
    cost |= {"evicted": document["counters"].get("evicted_total", 0),
             "refused_blocks": outcome.refused, "processes": outcome.processes,
             "kills": outcome.kills, "seconds": document["seconds"],
             "broken": "; ".join(outcome.broken) or None}
    return "\n\n".join([
        about(trace),
        f"# hit ratios in %, {outcome.blocks} blocks\n" + text.table(
            ["POLICY", "BLOCK", "TOKEN", "COMPUTE"], rows, right=["BLOCK", "TOKEN", "COMPUTE"],
            color=color),
        text.pairs("cost", {k: "-" if v is None else v for k, v in cost.items()})])
