# SPDX-License-Identifier: Apache-2.0
"""A worker is killed in mid-prefill: what the others notice, and what is left of it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from .asking import Reply, Worker, WorkerError
from .fleet import REQUEST_LIMIT, Fleet, Question
from .prompts import Prompts
from .records import Crash, Served

if TYPE_CHECKING:
    from .host import Host
    from .scenario import Conversations

CLEAN_LIMIT = 2.0  # seconds after a kill until nothing of the dead may be left
ATTEMPTS = 5  # to kill before the prompt is done
FOLLOW_UPS = ("Please say that again in one sentence.", "Are you sure? Check the rules above.")
Asked = tuple[Worker, Question, int, Future[Reply]]


def crash_one(
    prompts: Prompts, conversations: Conversations, fleet: Fleet, host: Host | None
) -> Crash:
    """Kill the last worker half-way through a prompt that nobody has seen, while the others serve;
    then give its prompt to one of them."""
    victim, survivors, ledger = fleet.workers[-1], fleet.workers[:-1], fleet.ledger
    fleet.progress.phase(f"a new prompt for {victim.label}, then SIGKILL in mid-prefill")
    asked = _ask_all(fleet, conversations, survivors, 0)
    words = fleet.language
    for attempt in range(ATTEMPTS):
        text = f"Deployment {attempt + 2} of the same. {prompts.system}"
        prompt = [*words.system_turn(text), *words.user_turn(FOLLOW_UPS[0])]
        before = ledger.registered_by(victim.label)
        half_way = HalfWay(fleet, victim, len(prompt))
        doomed = victim.ask(prompt, fleet.new_tokens)
        if not half_way.wait(REQUEST_LIMIT):
            raise WorkerError(f"{victim.label} did not get half-way through {len(prompt)} tokens")
        if not doomed.done():  # else it was faster than we; once more
            break
    fleet.watch = None
    killed = time.monotonic()
    fleet.kill(victim)
    clean_ms = None
    if host is not None and host.wait_gone(victim.pid, CLEAN_LIMIT):
        clean_ms = 1e3 * (time.monotonic() - killed)
    if doomed.exception(REQUEST_LIMIT) is None:
        raise WorkerError(f"{victim.label} answered before it could be killed")
    asked += _ask_all(fleet, conversations, survivors, 1)
    answered, lost = _collect(fleet, asked)
    broken = host.broken_when_quiet(CLEAN_LIMIT) if host is not None else []

    registered = ledger.registered_by(victim.label) - before
    ledger.sequence(victim.label, prompt[: registered * ledger.block_tokens])
    fleet.progress.phase(f"the killed worker's prompt, asked of {survivors[0].label}")
    heir = fleet.answer(survivors[0], Question(0, "of the killed worker", 0, prompt))
    return Crash(
        victim=victim.label, prompt_tokens=len(prompt), killed_at=half_way.position,
        registered=registered, clean_ms=clean_ms, broken=broken, survivors=answered, heir=heir,
        heir_from_victim=ledger.split(victim.label, heir.reply.reused)[0], lost=lost,
    )


class HalfWay:
    """Tells when a worker has computed half of a prompt."""

    def __init__(self, fleet: Fleet, worker: Worker, tokens_in_all: int) -> None:
        self.position = 0
        self._reached = threading.Event()

        def watch(who: Worker, position: int) -> None:
            if who is worker and not self._reached.is_set():
                self.position = position
                if position >= tokens_in_all // 2:
                    self._reached.set()

        fleet.watch = watch

    def wait(self, limit: float) -> bool:
        return self._reached.wait(limit)


def _ask_all(
    fleet: Fleet, conversations: Conversations, workers: list[Worker], number: int
) -> list[Asked]:
    """A follow-up question for each, in conversations that are at its end."""
    asked = []
    for i, worker in enumerate(workers):
        which = (2 * i + number) % len(conversations.all)
        turn = len(conversations.all[which].turns)
        question = conversations.question(which, turn, FOLLOW_UPS[number])
        shared = fleet.ledger.shared_with_others(worker.label, question.prompt)
        asked.append((worker, question, shared, worker.ask(question.prompt, fleet.new_tokens)))
    return asked


def _collect(fleet: Fleet, asked: list[Asked]) -> tuple[list[Served], list[str]]:
    answered: list[Served] = []
    lost: list[str] = []
    for worker, question, shared, future in asked:
        try:
            reply = future.result(REQUEST_LIMIT)
            answered.append(fleet.account(worker, question, reply, shared))
        except WorkerError as error:
            lost.append(str(error))
    return answered, lost
