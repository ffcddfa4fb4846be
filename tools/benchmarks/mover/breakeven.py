# SPDX-License-Identifier: Apache-2.0
"""From how many tokens on it is faster to load than to compute, for each tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..native import Role
from ..rows import Row

MEMORY, DISK = "break-even length, memory", "break-even length, disk"


@dataclass(frozen=True)
class Cost:
    """What computing makes; the defaults are a model of 8 billion parameters in 16 bits."""

    tokens_per_second: int = 10_000
    token_bytes: int = 128 << 10

    def __str__(self) -> str:
        return (f"computing: {self.tokens_per_second:,} tokens/s of "
                f"{self.token_bytes / 1024:g} KiB, "
                f"{self.tokens_per_second * self.token_bytes / 1e9:.3g} GB/s")


@dataclass(frozen=True)
class Times:
    """Of one block alone and of many in one go, in seconds."""

    block: int
    one: float
    nbytes: int
    many: float

    @property
    def each(self) -> float:
        """Seconds a byte of a long load."""
        return max(0.0, self.many - self.one) / (self.nbytes - self.block)

    @property
    def begin(self) -> float:
        """Seconds that a load takes whatever its length."""
        return max(0.0, self.one - self.each * self.block)


def times(role: Role, block: int, nbytes: int, passes: int, rounds: int) -> Times:
    """One block and all of them in turn; the role does so many passes over all."""
    one, many = [], []
    for _ in range(rounds):
        one.append(role.run("one 0")["seconds"])
        many.append(role.run("move 0")["seconds"] / passes)
    return Times(block, median(one), nbytes, median(many))


def tokens(way: Sequence[Times], cost: Cost) -> float | None:
    """way: the steps one behind the other. At least a block, the least that is loaded; None: a
    token takes longer to come than to compute, so never."""
    each = cost.token_bytes * sum(step.each for step in way)
    gain = 1 / cost.tokens_per_second - each
    if gain <= 0:
        return None
    least = max(step.block for step in way) / cost.token_bytes
    return max(least, sum(step.begin for step in way) / gain)


def row(what: str, way: Sequence[Times], cost: Cost) -> Row:
    length = tokens(way, cost)
    rate = 1 / max(sum(step.each for step in way), 1e-15) / 1e9
    begin = sum(step.begin for step in way) * 1e6
    never = "" if length is not None else "never: "
    return Row(what, length, "tokens",
               note=f"{never}loading: {begin:,.0f} us and {rate:.3g} GB/s; {cost}")
