# SPDX-License-Identifier: Apache-2.0
"""A recorded load: for each request the ids of its blocks.

An id stands for a block and its whole prefix, so the longest cached prefix of a request is the run
of its leading ids that are present.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .failures import ReplayError

Ids = npt.NDArray[np.uint64]
Dense = npt.NDArray[np.int32]
Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trace:
    """ids: of all requests, one after the other; request i has ids[bounds[i]:bounds[i + 1]].

    tokens: of each request's input. seconds: since the first. sessions, tenants: one number a
    request, or None where the trace names none. skipped: lines that were not whole.
    """

    name: str
    block_tokens: int
    ids: Ids
    bounds: Whole
    tokens: Whole
    seconds: Real
    sessions: Whole | None = None
    tenants: Whole | None = None
    skipped: int = 0

    @property
    def requests(self) -> int:
        return len(self.tokens)

    @property
    def accesses(self) -> int:
        return len(self.ids)

    @cached_property
    def lengths(self) -> Whole:
        """Blocks of each request."""
        return np.diff(self.bounds)

    @cached_property
    def _numbered(self) -> tuple[int, Dense]:
        """How many different ids there are, and each as one of 0, 1, 2 ..."""
        if self.accesses and int(self.ids.max()) < 4 * self.accesses + 1024:
            # Small numbers already, as the known traces have: no sort.
            seen = np.zeros(int(self.ids.max()) + 1, bool)
            seen[self.ids] = True
            numbers = np.cumsum(seen, dtype=np.int32) - np.int32(1)
            return int(seen.sum()), numbers[self.ids]
        different, inverse = np.unique(self.ids, return_inverse=True)
        return len(different), inverse.astype(np.int32)

    @property
    def unique(self) -> int:
        return self._numbered[0]

    @property
    def dense(self) -> Dense:
        return self._numbered[1]

    def head(self, requests: int) -> Trace:
        """The first so many requests."""
        if requests >= self.requests:
            return self
        end = int(self.bounds[requests])
        return replace(
            self, ids=self.ids[:end], bounds=self.bounds[:requests + 1],
            tokens=self.tokens[:requests], seconds=self.seconds[:requests],
            sessions=None if self.sessions is None else self.sessions[:requests],
            tenants=None if self.tenants is None else self.tenants[:requests])

    def select(self, chosen: Whole) -> Trace:
        """The requests of these numbers, in the given order."""
        starts, lengths = self.bounds[chosen], self.lengths[chosen]
        ends = np.cumsum(lengths)
        at = np.arange(int(lengths.sum()), dtype=np.int64)
        at += np.repeat(starts - (ends - lengths), lengths)
        return replace(
            self, ids=self.ids[at], bounds=np.concatenate([np.zeros(1, np.int64), ends]),
            tokens=self.tokens[chosen], seconds=self.seconds[chosen],
            sessions=None if self.sessions is None else self.sessions[chosen],
            tenants=None if self.tenants is None else self.tenants[chosen])

    def blocks_of(self, fraction: float) -> int:
        """A capacity as a share of the different blocks."""
        blocks = int(self.unique * fraction)
        if blocks < 1:
            raise ReplayError(f"a fraction of {fraction} of {self.unique} blocks is no block")
        return blocks

    def about(self) -> dict[str, Any]:
        return dict(trace=self.name, requests=self.requests, accesses=self.accesses,
                    unique_blocks=self.unique, block_tokens=self.block_tokens,
                    skipped_lines=self.skipped)
