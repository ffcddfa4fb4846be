# SPDX-License-Identifier: Apache-2.0
"""What was measured, and whether the targets hold: figures in, verdicts out, nothing else.

A Row is one figure. A row with a limit is a gate. A target holds if all its gates that could be
measured hold; what it shows as its value is the gate that is nearest to its limit, or farthest
beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

AT_MOST, AT_LEAST = "<=", ">="


@dataclass(frozen=True)
class Row:
    what: str
    value: float | None  # the median of its samples; None: not measured, `note` says why
    unit: str
    limit: float | None = None
    sense: str = AT_MOST
    spread: tuple[float, float] | None = None  # quartiles
    samples: int = 0
    blocks: int | None = None
    pages: str = ""  # of the arena, as the kernel counts them
    processes: int = 1
    reference: bool = False
    note: str = ""
    interval: tuple[float, float] | None = None  # of a ratio, 95 %: with 1 in it, it holds as well

    @property
    def level(self) -> bool:
        """No difference was seen."""
        return self.interval is not None and self.interval[0] <= 1 <= self.interval[1]

    @property
    def holds(self) -> bool | None:
        if self.limit is None or self.value is None:
            return None
        if self.level:
            return True
        return self.value <= self.limit if self.sense == AT_MOST else self.value >= self.limit

    @property
    def strain(self) -> float:
        """How much of the limit is used up: above 1 it is broken."""
        assert self.limit is not None and self.value is not None
        used = self._used(self.limit, self.value)
        return min(used, 1.0) if self.level else used

    def _used(self, limit: float, value: float) -> float:
        if self.sense == AT_MOST:
            return value / limit if limit else float(value > 0) * 2
        return limit / value if value else float("inf")


def row(what: str, samples: Sequence[float], unit: str, **more: Any) -> Row:
    """The median of the samples, with their quartiles as spread."""
    low, _, high = quantiles(samples, n=4) if len(samples) > 1 else (samples[0],) * 3
    return Row(what, median(samples), unit, spread=(low, high), samples=len(samples), **more)


def skipped(what: str, unit: str, why: str, **more: Any) -> Row:
    return Row(what, None, unit, note=f"not measured: {why}", **more)


@dataclass(frozen=True)
class Target:
    name: str
    title: str
    rows: tuple[Row, ...]

    @property
    def gates(self) -> list[Row]:
        return [r for r in self.rows if r.limit is not None]

    @property
    def tightest(self) -> Row | None:
        return max((r for r in self.gates if r.value is not None), key=lambda r: r.strain,
                   default=None)

    @property
    def holds(self) -> bool | None:
        """None: none of its gates could be measured."""
        worst = self.tightest
        return worst.holds if worst else None
