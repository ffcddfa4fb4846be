# SPDX-License-Identifier: Apache-2.0
"""What the demo did, in plain data: filled by the scenario, read by checks and report."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from .asking import Reply
from .compare import Comparison


@dataclass
class Served:
    """A request that was answered."""

    worker: str
    conversation: str
    turn: int
    prompt: list[int]
    reply: Reply
    from_self: int  # prompt tokens reused that this worker had computed
    from_others: int
    shared: int  # prompt tokens that another worker had had before
    exact: bool  # every reused block was computed in whole chunks: equal bits are due
    cold: Reply | None = None  # the same without reuse, where that was asked for
    comparison: Comparison | None = None

    @property
    def computed(self) -> int:
        return len(self.prompt) - self.from_self - self.from_others

    @property
    def due_from_others(self) -> int:
        """Of the shared tokens those that this worker did not have from itself."""
        return max(0, self.shared - self.from_self)


def fraction_from_others(served: list[Served]) -> float | None:
    due = sum(one.due_from_others for one in served)
    taken = sum(min(one.from_others, one.due_from_others) for one in served)
    return taken / due if due else None


@dataclass
class Crash:
    victim: str
    prompt_tokens: int
    killed_at: int  # position in the prompt
    registered: int  # blocks of this prompt that the victim had registered
    clean_ms: float | None  # from the kill until nothing of the victim is left; None: not in time
    broken: list[str]  # invariants of the arena
    survivors: list[Served]
    heir: Served | None  # the victim's prompt, asked again of a survivor
    heir_from_victim: int
    lost: list[str]  # requests of survivors that were not answered


@dataclass
class Outcome:
    kv: str
    served: list[Served] = field(default_factory=list)
    crash: Crash | None = None
    restart: Served | None = None
    bytes_copied: int | None = None  # as the arena counts them
    bytes_expected: int | None = None  # as the workers count blocks
    bytes_copied_at_end: int | None = None  # after the crash too

    @property
    def referenced(self) -> list[Served]:
        """Requests whose answer without reuse is known too."""
        every = list(self.served)
        if self.crash is not None:
            every += self.crash.survivors + ([self.crash.heir] if self.crash.heir else [])
        if self.restart is not None:
            every.append(self.restart)
        return [one for one in every if one.cold is not None]

    def logits_max_diff(self) -> float | None:
        """None where the engine tells no logits."""
        found = [o.comparison.max_diff for o in self.referenced if o.comparison]
        told = [one for one in found if one is not None]
        return max(told, default=0.0) if len(told) == len(found) else None

    def tokens_equal(self) -> bool:
        compared = [o.comparison for o in self.referenced if o.comparison]
        return bool(compared) and all(one.tokens_equal for one in compared)

    def ttft_warm_ms(self) -> float | None:
        return _median([one.reply.ttft_ms for one in self.served if one.cold is not None])

    def ttft_cold_ms(self) -> float | None:
        return _median([one.cold.ttft_ms for one in self.served if one.cold is not None])


def _median(values: list[float]) -> float | None:
    return median(values) if values else None
