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

    @property
    def holds(self) -> bool | None:
        if self.limit is None or self.value is None:
            return None
        return self.value <= self.limit if self.sense == AT_MOST else self.value >= self.limit

    @property
    def strain(self) -> float:
        """How much of the limit is used up: above 1 it is broken."""
        assert self.limit is not None and self.value is not None
        if self.sense == AT_MOST:
            return self.value / self.limit if self.limit else float(self.value > 0) * 2
        return self.limit / self.value if self.value else float("inf")


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
