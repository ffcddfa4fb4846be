# SPDX-License-Identifier: Apache-2.0
"""An engine that only prefills, at a set pace, with a disk tier below its arena; for a process of
its own. What computing takes is slept, and counted exactly; what the cache takes is measured."""
from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import kvshm
import numpy as np
from support.arenas import eventually
from support.oracle import Bytes, judge, payload, raw_keys

LIMIT = 20.0
DISK = ("tier_hits_total", "tier_loaded_total")


class Engine:
    """tokens: of a block; pace: tokens a second; known: blocks of each prompt that are on disk;
    members: of the control group that it joins."""

    def __init__(self, name: str, file: str, members: str, *, token_bytes: int, tokens: int,
                 prompt: int, known: int, pace: int, min_speed: int) -> None:
        if members:
            Path(members).write_text("0")
        self.second_each = tokens / pace
        self.prompt, self.known, self.min_speed = prompt, known, min_speed
        self.block = token_bytes * tokens
        self.arena = kvshm.Arena.create(
            name, blocks=128, block_bytes=self.block, pin="off", tier=file, tier_size="160MiB",
            tier_options={"min_speed": min_speed})
        assert eventually(lambda: self.tier.state == kvshm.TierState.OK, LIMIT)
        self.heads = [raw_keys(100 * i, known) for i in range(8)]
        self.next = 100_000  # of keys that nobody has had
        self.turn = 0
        self.data = [[payload(key, self.block) for key in head] for head in self.heads]
        self.some = [payload(key, self.block) for key in raw_keys(self.next, prompt)]
        for head, data in zip(self.heads, self.data, strict=True):
            if known:
                self.keep(head, data)
                assert self.arena.tier_drain(LIMIT)

    @property
    def tier(self) -> Any:
        return self.arena.tier

    def keep(self, keys: np.ndarray, data: list[np.ndarray]) -> None:
        with self.arena.allocate(len(keys), keys=keys, timeout=LIMIT) as fill:
            for i, one in enumerate(data):
                np.frombuffer(memoryview(fill.view(i)), np.uint8)[:] = one
            fill.register().release()

    def prefix(self) -> np.ndarray:
        """That others have driven out of memory meanwhile; it is on disk."""
        head = self.heads[self.turn % len(self.heads)]
        self.turn += 1

        def gone() -> bool:
            self.arena.evict(head)
            return bool((self.arena.presence(head) == kvshm.Presence.G3).all())

        assert eventually(gone), f"not on disk alone: {self.arena.presence(head)}"
        return head

    def look(self, keys: np.ndarray) -> tuple[kvshm.Lease, float]:
        began = time.perf_counter()
        lease = self.arena.match(keys, load=True)
        there = lease.wait(LIMIT)
        took = time.perf_counter() - began
        assert there, f"a load has not ended in {LIMIT} s"
        return lease, took

    def learn(self) -> dict[str, float]:
        """Loads one behind the other, until the tier knows its speed."""
        nbytes, seconds = 0, 0.0
        while self.known and not self.tier.read_speed:
            lease, took = self.look(self.prefix())
            nbytes, seconds = nbytes + len(lease) * self.block, seconds + took
            lease.release()
        speed = self.tier.read_speed
        assert not 0 < speed < self.min_speed or eventually(
            lambda: self.tier.state == kvshm.TierState.SLOW), self.tier
        return {"bytes": nbytes, "seconds": seconds, "speed": speed}

    def twice(self) -> list[dict[str, int]]:
        """A prefix that is on disk, asked for twice: what each look-up counts, and what it got."""
        head, found = self.prefix(), []
        for _ in range(2):
            before = self.arena.stats()
            lease, _ = self.look(head)
            after = self.arena.stats()
            found.append({"got": len(lease), **{name: after[name] - before[name]
                                                for name in ("hits_total", *DISK)}})
            lease.release()
            if not found[0]["got"]:
                self.keep(head, self.data[(self.turn - 1) % len(self.heads)])
        return found

    def serve(self, seconds: float) -> dict[str, Any]:
        """Prompts, until computing all of them without a cache would have taken so long."""
        off, compute = 0.0, 0.0
        waits: list[float] = []  # of those that loaded something
        calls: list[float] = []  # of the others
        found = dict.fromkeys(("memory", "loaded", "skipped", "skipped_slow", "wrong"), 0)
        before = self.arena.stats()
        while off < seconds:
            data = self.data[self.turn % len(self.heads)] + self.some[self.known:]
            head = self.prefix()
            keys = np.concatenate([head, raw_keys(self.next, self.prompt - self.known)])
            self.next += self.prompt
            slow = self.tier.state == kvshm.TierState.SLOW
            lease, took = self.look(keys)
            n = len(lease)
            states = list(lease.states[:n]) if n else []
            loaded = states.count(kvshm.LoadState.LOADED)
            found["loaded"] += loaded
            found["memory"] += n - loaded
            found["skipped"] += n < len(head)
            found["skipped_slow"] += n < len(head) and slow
            found["wrong"] += sum(judge(lease.view(i), keys[i]) is not Bytes.RIGHT
                                  for i in range(n))
            time.sleep((self.prompt - n) * self.second_each)
            compute += (self.prompt - n) * self.second_each
            off += self.prompt * self.second_each
            began = time.perf_counter()
            lease.release()
            self.keep(keys[n:], data[n:])
            (waits if loaded else calls).append(took + time.perf_counter() - began)
        after = self.arena.stats()
        return found | {
            "off": off, "total": compute + sum(waits) + len(calls) * median(calls or [0.0]),
            "plain": compute + sum(waits) + sum(calls), "waits": waits,
            "prompts": len(waits) + len(calls),
            "state": kvshm.TierState(self.tier.state).name, "call": median(calls or [0.0]),
            **{name: after[name] - before[name] for name in ("hits_total", *DISK)}}
