# SPDX-License-Identifier: Apache-2.0
"""Rounds of several candidates, interleaved A B C, C B A, A B C ...: drift hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .native import Facts
from .progress import Progress

Candidate = Callable[[], Facts]


def interleave(
    candidates: Mapping[str, Candidate], rounds: int, progress: Progress, what: str
) -> dict[str, list[Facts]]:
    """One uncounted round, then `rounds` counted ones of each candidate."""
    got: dict[str, list[Facts]] = {name: [] for name in candidates}
    for number in range(-1, rounds):
        names = list(candidates)
        for name in names if number % 2 == 0 else reversed(names):
            progress.step(f"{what}: {name}", (number + 1) / (rounds + 1))
            answer = candidates[name]()
            if number >= 0:
                got[name].append(answer)
    return got


def samples(facts: list[Facts], name: str = "ns") -> list[float]:
    return [float(one[name]) for one in facts]
