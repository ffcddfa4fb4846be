# SPDX-License-Identifier: Apache-2.0
"""`kvshm stat --interval`: one line at a time, as vmstat has it."""
from __future__ import annotations

import time
from typing import Any

from ..inspector import census
from ..inspector.view import View
from . import text
from .failures import FINE, NO_ARENA, Failure

_GAUGES = {"blocks_free": "FREE", "blocks_filling": "FILLING", "blocks_held": "HELD",
           "blocks_inactive": "INACTIVE", "blocks_evicting": "EVICTING", "slots_used": "PROCS"}
_RATES = {"lookups_total": "LOOKUP/s", "allocated_total": "ALLOC/s", "evicted_total": "EVICT/s",
          "released_total": "RELEASE/s", "copy_in_bytes_total": "COPY/s"}
_HEAD_EVERY = 20


def follow(view: View, seconds: float, count: int | None, as_json: bool) -> int:
    before, then, done = census.totals(view), time.monotonic(), 0
    while count is None or done < count:
        time.sleep(seconds)
        if view.gone():
            raise Failure(NO_ARENA, view.name, "was removed")
        now, totals = time.monotonic(), census.totals(view)
        gauges = census.tally(view, view.words())
        rates = {name: (totals[name] - before[name]) / (now - then) for name in totals}
        if as_json:
            text.print_json(text.document("interval", name=view.name, seconds=round(now - then, 3),
                                          gauges=gauges, per_second={
                                              k: round(v, 3) for k, v in rates.items()}),
                            one_line=True)
        else:
            if done % _HEAD_EVERY == 0:
                print(" ".join(f"{h:>9}" for h in [*_GAUGES.values(), *_RATES.values(), "HIT"]))
            print(_line(gauges, rates), flush=True)
        before, then, done = totals, now, done + 1
    return FINE


def _line(gauges: dict[str, int], rates: dict[str, float]) -> str:
    asked = rates["lookups_total"]
    cells: list[Any] = [gauges[name] for name in _GAUGES]
    for name in _RATES:
        cells.append(text.size(int(rates[name])) if "bytes" in name else f"{rates[name]:.0f}")
    cells.append(f"{100 * rates['hits_total'] / asked:.1f}%" if asked else "-")
    return " ".join(f"{cell:>9}" for cell in cells)
