# SPDX-License-Identifier: Apache-2.0
"""Invariants of an arena that others may be working on.

What spans several words can look broken for a moment. So while anybody lives, a finding counts only
if the very same words show it in every reading; where nobody does, one reading says it all.
"""
from __future__ import annotations

import time
from typing import NamedTuple

from . import invariants
from .snapshot import Snapshot
from .view import View


class Result(NamedTuple):
    broken: list[invariants.Broken]
    readings: int
    live_processes: int
    in_transition: int
    unfindable_blocks: int


def check(view: View, readings: int = 3, pause: float = 0.05, quiet: bool = False) -> Result:
    """Read at most `readings` times, `pause` seconds apart."""
    broken: set[invariants.Broken] | None = None
    done = 0
    while True:
        snapshot = Snapshot(view, quiet)
        seen = set(invariants.check(snapshot, quiet))
        broken = seen if broken is None else broken & seen
        done += 1
        if not broken or not snapshot.live or done >= readings:
            break
        time.sleep(pause)
    return Result(sorted(broken), done, snapshot.live.bit_count(),
                  invariants.in_transition(snapshot), invariants.unfindable(snapshot))
