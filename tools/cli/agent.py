# SPDX-License-Identifier: Apache-2.0
"""`kvshm agent`: stands for election as the arena's mover, for which it opens the tier, and as its
evictor, which marks victims by a policy of the user's. Runs until SIGTERM or SIGINT; says what it
does, a line at a time."""
from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from . import agent_tier, text
from .arenas import open_view
from .failures import FINE, FOUND, NOT_READY, USAGE, Failure, from_core

LOW = 0.02


def run(args: argparse.Namespace) -> int:
    import kvshm

    if args.policy is None and not args.tier:
        raise Failure(USAGE, "", "what is it to do?", "--tier FILE to move blocks between memory "
                      "and disk, --policy MODULE:NAME to mark victims, or both")
    if args.once and args.tier:
        raise Failure(USAGE, "", "--once is for a policy alone: who moves blocks stays")
    if not args.tier and (args.tier_size or args.write or args.tier_option):
        raise Failure(USAGE, "", "--tier-size, --write and --tier-option need --tier FILE")
    policy = None if args.policy is None else _policy(args.policy)
    stop = threading.Event()
    with open_view(args.arena, args.dir) as view:
        name = view.name
        options = agent_tier.options(args, view.geometry.blocks)
        try:
            with kvshm.Arena.attach(name, dir=args.dir, label="kvshm agent", pin="off", **options
                                    ) as arena:
                return _work(args, arena, view, policy, stop)
        except kvshm.Error as error:
            raise from_core(error, name) from None


def _work(args: argparse.Namespace, arena: Any, view: Any, policy: Any, stop: threading.Event
          ) -> int:
    from kvshm.eviction import Evictor

    report = Report(args, view.name)
    evictor = moving = None
    if policy is not None:
        evictor = Evictor(arena, policy, LOW if args.low is None else args.low, args.high,
                          share=args.cpu, tell=report.tell)
    if args.tier:
        report.moving = moving = agent_tier.Moving(arena, view, args.interval, report.tell)
    report.tell("started", low=evictor and evictor.low, high=evictor and evictor.high,
                blocks=arena.blocks, policy=args.policy, tier=agent_tier.paths(args) or None,
                write=(args.write or "through") if args.tier else None)
    try:
        if args.once:
            return _once(evictor, report)
        return _forever([one for one in (evictor, moving) if one is not None], report, stop)
    finally:
        report.end()
        if evictor is not None:
            evictor.close()


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


def _forever(parts: list[Any], report: Report, stop: threading.Event) -> int:
    def end(number: int, frame: Any) -> None:
        report.why = signal.Signals(number).name
        stop.set()

    before = {one: signal.signal(one, end) for one in (signal.SIGTERM, signal.SIGINT)}
    due = dict.fromkeys(parts, 0.0)
    try:
        while not stop.is_set():
            for part in parts:
                if (now := time.monotonic()) >= due[part]:
                    due[part] = now + part.step()
            report.summary()
            stop.wait(max(0.0, min(due.values()) - time.monotonic()))
        if report.moving is not None:
            report.moving.drain()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    return FINE


class Report:
    """Lines for people or JSON lines. Refills, which may come ten times a second, are summed up."""

    def __init__(self, args: argparse.Namespace, name: str) -> None:
        self.name, self.failed, self.why = name, False, "once" if args.once else "error"
        self.moving: agent_tier.Moving | None = None
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
        facts: dict[str, Any] = {"why": self.why}
        if self._args.policy is not None:
            facts |= self._all
        if self.moving is not None:
            facts |= self.moving.totals()
        self._print("ended", facts)

    def _print(self, event: str, facts: dict[str, Any]) -> None:
        if self._args.json:
            text.print_json(text.document("agent", name=self.name, event=event, **facts),
                            one_line=True)
        elif not self._args.quiet:
            print(time.strftime("%H:%M:%S"), f"{self.name}:", _WORDS[event](facts), flush=True)


def _refills(facts: dict[str, Any]) -> str:
    done = text.many(facts["refills"], "refill")
    short = facts["wanted"] - facts["marked"]
    return (f"{text.many(facts['marked'], 'block')} marked in {done}, "
            f"{facts['seconds'] * 1e3:.1f} ms of work" + (f"; {short} not found" if short else ""))


def _moved(facts: dict[str, Any]) -> str:
    waits = [f"{n} {lane}" for lane, n in facts.get("queued", {}).items() if n]
    return (f"{text.many(facts['stored'], 'block')} stored, {facts['loaded_ahead']} loaded ahead, "
            f"{facts['dropped']} dropped"
            + (f", {facts['failed']} not written" if facts["failed"] else "")
            + (f"; waiting: {', '.join(waits)}" if waits else ""))


def _started(facts: dict[str, Any]) -> str:
    parts = []
    if facts["policy"]:
        parts.append(f"{facts['policy']} keeps {facts['low']} to {facts['high']} of "
                     f"{facts['blocks']} blocks free or marked")
    if facts["tier"]:
        parts.append(f"stands for mover of {text.clean(':'.join(facts['tier']))} "
                     f"(write {facts['write']})")
    return "; ".join(parts)


def _ended(facts: dict[str, Any]) -> str:
    parts = [_refills(facts)] if "refills" in facts else []
    parts += [_moved(facts)] if "stored" in facts else []
    return f"ends ({facts['why']}): {'; '.join(parts)}"


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "started": _started,
    "elected": lambda f: "elected",
    "standing_by": lambda f: "another process is the evictor; standing by",
    "policy_failed": lambda f: f"the policy failed, the arena's own goes on: {f['error']}",
    "policy_works": lambda f: "the policy works again",
    "policy_nan": lambda f: f"the policy gave NaN for {f['scores']} blocks: never victims",
    "policy_empty": lambda f: ("the policy finds no victim, the arena's own goes on; "
                               f"{f['negative']} blocks had a negative score"),
    "refills": _refills,
    "mover_elected": lambda f: "elected mover",
    "mover_standing_by": lambda f: f"pid {f['pid']} moves; standing by",
    "moved": _moved,
    "tier_state": lambda f: f"the tier is {f['state']}" + (f": {f['why']}" if f["why"] else ""),
    "ended": _ended,
}
