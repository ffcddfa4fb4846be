# SPDX-License-Identifier: Apache-2.0
"""`kvshm agent`: stands for election as the arena's evictor, and marks victims by a policy of the
user's. Runs until SIGTERM or SIGINT; says what it does, a line at a time."""
from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from . import text
from .arenas import choose
from .failures import FINE, FOUND, NOT_READY, USAGE, Failure, from_core


def run(args: argparse.Namespace) -> int:
    import kvshm
    from kvshm.eviction import Evictor

    name, policy = choose(args.arena, args.dir), _policy(args.policy)
    stop = threading.Event()
    try:
        with kvshm.Arena.attach(name, dir=args.dir, label="kvshm agent", pin="off") as arena:
            report = Report(args, name)
            evictor = Evictor(arena, policy, args.low, args.high, share=args.cpu, tell=report.tell)
            report.tell("started", low=evictor.low, high=evictor.high, blocks=arena.blocks,
                        policy=args.policy)
            try:
                return _once(evictor, report) if args.once else _forever(evictor, report, stop)
            finally:
                report.end()
                evictor.close()
    except kvshm.Error as error:
        raise from_core(error, name) from None


def _policy(name: str) -> Any:
    import kvshm
    from kvshm.eviction import load_policy

    try:
        return load_policy(name)
    except kvshm.InvalidArgument as error:
        raise Failure(USAGE, "", str(error)) from None
    except Exception as error:  # the module's own
        raise Failure(USAGE, "", f"policy: {name}: {type(error).__name__} at its import: {error}"
                      ) from None


def _once(evictor: Any, report: Report) -> int:
    evictor.step()
    if not evictor.elected:
        raise Failure(NOT_READY, report.name, "another process is its evictor",
                      "end that one, or leave --once out to stand by")
    return FOUND if report.failed else FINE


def _forever(evictor: Any, report: Report, stop: threading.Event) -> int:
    def end(number: int, frame: Any) -> None:
        report.why = signal.Signals(number).name
        stop.set()

    before = {one: signal.signal(one, end) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        while not stop.is_set():
            stop.wait(evictor.step())
            report.summary()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    return FINE


class Report:
    """Lines for people or JSON lines. Refills, which may come ten times a second, are summed up."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.name, self.failed, self.why = name, False, "once" if args.once else "error"
        self._args = args
        self._since = time.monotonic()
        self._sum = self._none()
        self._all = self._none()

    @staticmethod
    def _none() -> dict[str, Any]:
        return {"refills": 0, "wanted": 0, "marked": 0, "seconds": 0.0}

    def tell(self, event: str, **facts: Any) -> None:
        if event == "refill":
            found = facts["report"]
            for total in (self._sum, self._all):
                total["refills"] += 1
                total["wanted"] += found.wanted
                total["marked"] += found.marked
                total["seconds"] = round(total["seconds"] + facts["seconds"], 6)
            return
        if event == "policy_failed":
            self.failed = True
            if not self._args.quiet:  # with its trace, for who wrote it
                traceback.print_exception(facts["error"], file=sys.stderr)
            error = facts["error"]
            facts = {"error": f"{type(error).__name__}: {error}"}
        self._print(event, facts)

    def summary(self, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._sum["refills"] and (at_once or now - self._since >= self._args.interval):
            self._print("refills", self._sum)
            self._since, self._sum = now, self._none()

    def end(self) -> None:
        self.summary(at_once=True)
        self._print("ended", {"why": self.why, **self._all})

    def _print(self, event: str, facts: dict[str, Any]) -> None:
        if self._args.json:
            text.print_json(text.document("agent", name=self.name, event=event, **facts),
                            one_line=True)
        elif not self._args.quiet:
            print(time.strftime("%H:%M:%S"), f"{self.name}:", _WORDS[event](facts), flush=True)


def _work(facts: dict[str, Any]) -> str:
    done = text.many(facts["refills"], "refill")
    short = facts["wanted"] - facts["marked"]
    return (f"{text.many(facts['marked'], 'block')} marked in {done}, "
            f"{facts['seconds'] * 1e3:.1f} ms of work" + (f"; {short} not found" if short else ""))


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "started": lambda f: (f"{f['policy']} keeps {f['low']} to {f['high']} of {f['blocks']} blocks "
                          "free or marked"),
    "elected": lambda f: "elected",
    "standing_by": lambda f: "another process is the evictor; standing by",
    "policy_failed": lambda f: f"the policy failed, the arena's own goes on: {f['error']}",
    "policy_works": lambda f: "the policy works again",
    "policy_nan": lambda f: f"the policy gave NaN for {f['scores']} blocks: never victims",
    "policy_empty": lambda f: ("the policy finds no victim, the arena's own goes on; "
                               f"{f['negative']} blocks had a negative score"),
    "refills": _work,
    "ended": lambda f: f"ends ({f['why']}): {_work(f)}",
}
