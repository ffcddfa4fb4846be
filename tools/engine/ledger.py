# SPDX-License-Identifier: Apache-2.0
"""Who computed which block: kept by the asker from what the workers say, to account for reuse."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from .kv import PREFILL


@dataclass(frozen=True)
class Origin:
    worker: str
    parent: str
    made: str


@dataclass
class Ledger:
    block_tokens: int
    _origins: dict[str, Origin] = field(default_factory=dict)
    _pieces: set[str] = field(default_factory=set)
    _sequences: list[tuple[str, list[int]]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def block(self, worker: str, key: str, parent: str, made: str) -> None:
        with self._lock:
            # Two workers may compute one key at once; the first is who others got it from.
            self._origins.setdefault(key, Origin(worker, parent, made))
            if made != PREFILL:
                self._pieces.add(key)

    def sequence(self, worker: str, tokens: list[int]) -> None:
        """The worker has computed the KV of these tokens, or reused it."""
        with self._lock:
            self._sequences.append((worker, tokens))

    def shared_with_others(self, worker: str, prompt: list[int]) -> int:
        """Length of the longest prefix of the prompt that another worker has had, as of now. The
        last token does not count: it must be computed."""
        with self._lock:
            longest = 0
            for owner, tokens in self._sequences:
                if owner != worker:
                    longest = max(longest, common_prefix(prompt, tokens))
            return min(longest, len(prompt) - 1)

    def split(self, worker: str, reused: list[str]) -> tuple[int, int]:
        """Tokens reused that the worker had computed itself, and those from others."""
        with self._lock:
            mine = sum(
                key in self._origins and self._origins[key].worker == worker for key in reused
            )
        return mine * self.block_tokens, (len(reused) - mine) * self.block_tokens

    def from_worker(self, worker: str, reused: list[str]) -> int:
        """Tokens reused that this one worker had computed."""
        return self.split(worker, reused)[0]

    def registered_by(self, worker: str) -> int:
        with self._lock:
            return sum(origin.worker == worker for origin in self._origins.values())

    def exact(self, reused: list[str]) -> bool:
        """Were all of these blocks, and all before them, computed in whole chunks? Then their
        bits are those that any worker would have computed."""
        with self._lock:
            key = reused[-1] if reused else ""
            while key:
                origin = self._origins.get(key)
                if origin is None or key in self._pieces:
                    return False
                key = origin.parent
            return True


def common_prefix(a: list[int], b: list[int]) -> int:
    limit = min(len(a), len(b))
    if a[:limit] == b[:limit]:
        return limit
    low, high = 0, limit  # a[:low] equal, a[:high] not
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
