# SPDX-License-Identifier: Apache-2.0
"""The part of `kvshm agent` that moves blocks between memory and disk for all processes.

The library's thread moves. What is looked at here are a few words of the arena, to say who does.
"""
from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from ..inspector import queues
from ..inspector.view import View
from .failures import NO_ARENA, USAGE, Failure

LOOK = 0.1  # seconds between two looks at who moves
DRAIN = 3.0  # seconds for what waits when it ends; the next mover finds the rest
COUNTED = {"stored": "tier_stored_total", "failed": "tier_store_failed_total",
           "loaded_ahead": "tier_prefetched_total", "dropped": "tier_dropped_total"}


def paths(args: argparse.Namespace) -> list[str]:
    return [part for one in args.tier for part in one.split(":")]


def options(args: argparse.Namespace, blocks: int) -> dict[str, Any]:
    """For Arena.attach. blocks: of the arena, of which --low may name a number."""
    if not args.tier:
        return {}
    given = {"write": args.write} if args.write is not None else {}
    if args.low is not None:
        given["low"] = args.low if isinstance(args.low, float) else min(1.0, args.low / blocks)
    for one in args.tier_option:
        name, is_there, value = one.partition("=")
        if not is_there or name in ("mover", "write"):
            raise Failure(USAGE, "", f"--tier-option {one}: wanted NAME=VALUE of docs/tier.md",
                          "--write RULE says what goes down" if name == "write" else "")
        given[name] = _value(value)
    return {"tier": paths(args), "tier_size": args.tier_size or 0, "tier_options": given}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # "64MiB"


class Moving:
    """Tells who moves, and what this process has moved: tell(event, **facts)."""

    def __init__(self, arena: Any, view: View, interval: float, tell: Callable[..., None]) -> None:
        self.elected = False
        self._arena, self._view, self._interval, self._tell = arena, view, interval, tell
        self._other: int | None = None
        self._state = ""
        self._since = time.monotonic()
        self._told = dict.fromkeys(COUNTED, 0)  # it may have been elected already

    def step(self) -> float:
        """Seconds until the next is worth it."""
        if self._view.gone():
            raise Failure(NO_ARENA, self._arena.name, "was removed")
        found = queues.mover(self._view)
        mine = found is not None and found["alive"] and found["slot"] == self._arena.slot
        if mine and not self.elected:
            self._tell("mover_elected")
        other = found["pid"] if found is not None and found["alive"] and not mine else None
        if other is not None and other != self._other:
            self._tell("mover_standing_by", pid=other)
        self.elected, self._other = mine, other
        if time.monotonic() - self._since >= self._interval:
            self.summary()
        return min(LOOK, self._interval)

    def summary(self) -> None:
        from kvshm import TierState

        self._since, before = time.monotonic(), self._told
        self._told = now = self._counts()
        moved = {name: now[name] - before[name] for name in COUNTED}
        waits = self._waiting() if self.elected else {}
        if any(moved.values()) or any(waits.values()):
            self._tell("moved", **moved, queued=waits)
        tier = self._arena.tier  # a walk over the slots: not at every look
        state = TierState(tier.state).name.lower().replace("_", " ")
        if state not in (self._state, "none"):
            if self._state or state not in ("ok", "rebuilding"):
                self._tell("tier_state", state=state, why=tier.why)
            self._state = state

    def totals(self) -> dict[str, int]:
        return self._counts()

    def drain(self) -> None:
        """What was gathered goes down, and what waits by now, for DRAIN seconds at most."""
        self.step()  # it may have been elected since the last look
        if not self.elected:
            return
        self._arena.tier_flush()
        stores = len(queues.LANES) - 1  # nobody waits for what is to be loaded ahead
        ends = [lane.tail for lane in queues.lanes(self._view)[:stores]]
        until = time.monotonic() + DRAIN
        while time.monotonic() < until and any(
                lane.done < end for lane, end in zip(queues.lanes(self._view), ends, strict=False)):
            time.sleep(0.01)

    def _counts(self) -> dict[str, int]:
        stats = self._arena.stats(own=True)
        return {name: int(getattr(stats, field)) for name, field in COUNTED.items()}

    def _waiting(self) -> dict[str, int]:
        return {name: lane.waiting for name, lane in zip(
            queues.LANES, queues.lanes(self._view), strict=True)}
