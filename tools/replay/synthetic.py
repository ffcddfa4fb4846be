# SPDX-License-Identifier: Apache-2.0
"""Seeded loads of our own, for tests anywhere. Made up, not measured: they say how policies differ
on a kind of load, not how well one does on yours.

- chat: many conversations whose turns grow, think times of minutes, a few system prompts, and
  people who ask once and never come back;
- agentic: few sessions with many quick turns over a long context, and sub-agents of their own;
- api: templates of very different popularity, each with a short new rest.
"""
from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count

import numpy as np

from .expanding import join
from .failures import ReplayError
from .trace import Ids, Trace

BLOCK_TOKENS = 512


@dataclass(frozen=True)
class Kind:
    """Lengths are in blocks and times in seconds, means of exponential distributions."""

    prompts: int       # shared first blocks: how many different ones
    prompt: int        # and how long one is
    skew: float        # of their popularity: a Zipf exponent
    first: float       # what a session brings in its first turn
    grow: float        # and in each later one
    turns: float       # mean number of turns; 1: nobody comes back
    once: float        # share of sessions that ask once, whatever `turns`
    arrive: float      # between two new sessions
    think: float       # between two turns of a session
    fork: float = 0.0  # share of turns that start a session with this one's context


KINDS = {
    "chat": Kind(prompts=8, prompt=3, skew=1.2, first=8, grow=3, turns=7, once=0.5, arrive=1.0,
                 think=120),
    "agentic": Kind(prompts=4, prompt=16, skew=0.8, first=24, grow=2, turns=40, once=0.05,
                    arrive=30.0, think=12, fork=0.03),
    "api": Kind(prompts=200, prompt=6, skew=1.0, first=2, grow=1, turns=1, once=1.0, arrive=0.2,
                think=1),
}
REQUESTS = {"chat": 6000, "agentic": 6000, "api": 12000}


def synthetic(kind: str, seed: int = 0, requests: int = 0) -> Trace:
    """The same trace for the same arguments. requests: 0 = what is usual for the kind."""
    if kind not in KINDS:
        raise ReplayError(f"--synthetic {kind}: there is {', '.join(KINDS)}")
    k, r = KINDS[kind], np.random.default_rng([seed, sorted(KINDS).index(kind)])
    wanted = requests or REQUESTS[kind]
    weights = 1.0 / np.arange(1, k.prompts + 1) ** k.skew
    prompts = [np.arange(i * k.prompt, (i + 1) * k.prompt, dtype=np.uint64)
               for i in range(k.prompts)]
    fresh, numbers = k.prompts * k.prompt, count()
    kept: list[Ids] = []
    tokens, seconds, sessions = [], [], []
    # (time, number, session, turns left, context); the number keeps equal times in order
    due: list[tuple[float, int, int, int, Ids]] = []
    opened, arrival = 0, 0.0
    while len(kept) < wanted:
        while not due or arrival <= due[0][0]:
            turns = 1 if r.random() < k.once else 1 + int(r.exponential(k.turns))
            start = prompts[int(r.choice(k.prompts, p=weights / weights.sum()))]
            heapq.heappush(due, (arrival, next(numbers), opened, turns, start))
            opened += 1
            arrival += float(r.exponential(k.arrive))
        now, _, session, turns, context = heapq.heappop(due)
        more = 1 + int(r.exponential(k.grow if len(context) > k.prompt else k.first))
        context = np.concatenate([context, np.arange(fresh, fresh + more, dtype=np.uint64)])
        fresh += more
        kept.append(context)
        tokens.append(len(context) * BLOCK_TOKENS - int(r.integers(0, BLOCK_TOKENS)))
        seconds.append(now)
        sessions.append(session)
        if turns > 1:
            later = now + float(r.exponential(k.think))
            heapq.heappush(due, (later, next(numbers), session, turns - 1, context))
        if r.random() < k.fork:
            heapq.heappush(due, (now, next(numbers), opened, 1 + turns // 4, context))
            opened += 1
    ids, bounds = join(kept, 1)
    return Trace(name=f"synthetic {kind}, seed {seed}", block_tokens=BLOCK_TOKENS, ids=ids,
                 bounds=bounds, tokens=np.array(tokens, np.int64), seconds=np.array(seconds),
                 sessions=np.array(sessions, np.int64))
