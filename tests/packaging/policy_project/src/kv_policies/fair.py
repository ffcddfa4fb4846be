"""A scorer in Python over the whole block table, and a Marker that runs it."""
import numpy as np
from kvshm import Arena, State
from kvshm.eviction import Marker, MarkReport


def largest_tenant_first(table, now):
    """Whoever has the most cached blocks pays first; within a tenant, the longest unused."""
    cached = (table["word"] >> np.uint64(48) & np.uint64(7)) == State.READY
    held = np.bincount(table["tenant"][cached], minlength=1)
    ages = np.uint32(now) - table["stamp"]    # wraps, as the stamps do
    scores = held[np.minimum(table["tenant"], len(held) - 1)] * 2.0**32 + ages
    return np.where(cached, scores, -1.0)


class FairMarker(Marker):
    """Keeps a reserve from the largest tenant's blocks, and counts what it marked."""

    def __init__(self, arena: Arena, low: float = 0.1, high: float = 0.2) -> None:
        super().__init__(arena, low, high, largest_tenant_first)
        self.marked_in_all = 0

    def run_once(self) -> MarkReport:
        report = super().run_once()
        self.marked_in_all += report.marked
        return report
