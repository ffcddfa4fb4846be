# SPDX-License-Identifier: Apache-2.0
"""Several policies at several capacities, beside the references."""
from __future__ import annotations

from typing import NamedTuple

from .crew import replay_together
from .drive import replay
from .progress import Progress
from .ratios import Ratios
from .references import REFERENCES, references
from .trace import Trace

FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class Point(NamedTuple):
    """A policy, or a reference, at one capacity."""

    policy: str
    reference: bool
    fraction: float
    blocks: int
    ratios: Ratios


def compare(trace: Trace, policies: list[str], capacities: list[int], processes: int,
            with_references: bool, progress: Progress) -> list[Point]:
    points = []
    for blocks in capacities:
        share = blocks / trace.unique
        for policy in policies:
            progress.stage(f"{policy}, {blocks} blocks", trace.requests)
            if processes > 1:
                outcome = replay_together(trace, policy, blocks, processes, tick=progress.advance)
            else:
                outcome = replay(trace, policy, blocks, progress.advance)
            points.append(Point(policy, False, share, blocks, outcome.ratios(trace)))
        if with_references:
            points += [Point(REFERENCES[name][0], True, share, blocks, found)
                       for name, found in references(trace, blocks, progress).items()]
    return points
