# SPDX-License-Identifier: Apache-2.0
"""The demo's course: conversations over several workers, references, a crash, a restart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .asking import Language, Worker
from .compare import compare
from .crash import crash_one
from .fleet import Fleet, Question
from .prompts import Prompts
from .records import Outcome, Served

if TYPE_CHECKING:  # importing it needs kvshm, which a run without sharing does not
    from .host import Host


@dataclass(frozen=True)
class Plan:
    workers: int
    references: int


class Conversations:
    """What was said so far in each."""

    def __init__(self, prompts: Prompts, words: Language) -> None:
        self._words = words
        self.all = prompts.conversations
        self._said = [words.system_turn(prompts.system) for _ in self.all]

    def question(self, conversation: int, turn: int, text: str) -> Question:
        prompt = [*self._said[conversation], *self._words.user_turn(text)]
        return Question(conversation, self.all[conversation].name, turn, prompt)

    def went_on(self, question: Question, answer: list[int]) -> None:
        self._said[question.conversation] = [*question.prompt, *answer, *self._words.end_turn()]


def play(plan: Plan, prompts: Prompts, fleet: Fleet, host: Host | None) -> Outcome:
    """Without a host nothing is shared. The workers are stopped in any case."""
    outcome = Outcome(fleet.kv)
    phase = fleet.progress.phase
    try:
        phase(f"starting {plan.workers} workers")
        fleet.start(plan.workers)
        conversations = Conversations(prompts, fleet.language)
        _converse(conversations, fleet, outcome)
        chosen = _sample(outcome.served, plan.references)
        phase(f"the same without reuse: {len(chosen)} requests")
        fleet.reference(chosen)
        if host is not None:
            outcome.bytes_copied = host.bytes_copied()
            outcome.bytes_expected = fleet.counted("copied_in", "copied_out")
        outcome.crash = crash = crash_one(prompts, conversations, fleet, host)
        phase("a fresh worker")
        outcome.restart = _restart(fleet, chosen[0])
        again = [one for one in (*crash.survivors[-1:], crash.heir) if one is not None]
        phase(f"after the crash, without reuse: {len(again)} requests")
        fleet.reference(again)
        if host is not None:
            outcome.bytes_copied_at_end = host.bytes_copied()
        return outcome
    finally:
        phase("stopping the workers")
        fleet.stop()


def _converse(conversations: Conversations, fleet: Fleet, outcome: Outcome) -> None:
    """Round by round; a conversation changes its worker with every turn."""

    def ask(worker: Worker, question: Question) -> Served:
        served = fleet.answer(worker, question)
        conversations.went_on(question, served.reply.tokens)
        return served

    workers = fleet.workers
    for turn in range(max(len(one.turns) for one in conversations.all)):
        work: dict[Worker, list[Question]] = {}
        for i, conversation in enumerate(conversations.all):
            if turn < len(conversation.turns):
                question = conversations.question(i, turn, conversation.turns[turn])
                work.setdefault(workers[(i + turn) % len(workers)], []).append(question)
        asked = sum(len(questions) for questions in work.values())
        fleet.progress.phase(f"round {turn + 1}: {asked} conversations")
        if turn == 0:
            # The very first request is alone: somebody has to compute the system prompt.
            outcome.served.append(ask(workers[0], work[workers[0]].pop(0)))
        outcome.served += fleet.in_parallel(work, ask)


def _sample(served: list[Served], count: int) -> list[Served]:
    """Evenly over all but the very first request, which had nothing to reuse anyway."""
    rest = served[1:] or served
    count = min(count, len(rest))
    return [rest[i * len(rest) // count] for i in range(count)]


def _restart(fleet: Fleet, known: Served) -> Served:
    """A fresh process; its first request is one whose answer without reuse is known."""
    (fresh,) = fleet.start(1)
    first = fleet.answer(fresh, Question(0, known.conversation, known.turn, known.prompt))
    assert known.cold is not None
    first.cold, first.comparison = known.cold, compare(first.reply, known.cold)
    return first
