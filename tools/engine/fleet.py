# SPDX-License-Identifier: Apache-2.0
"""The workers of a run: asking them, all at once, and accounting for what each reused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .asking import Language, Reply, Start, Worker
from .compare import compare
from .ledger import Ledger
from .progress import Progress
from .records import Served

REQUEST_LIMIT = 300.0  # seconds that any request may take
Watch = Callable[[Worker, int], None]


@dataclass(frozen=True)
class Question:
    conversation: int
    name: str
    turn: int
    prompt: list[int]


class Fleet:
    def __init__(self, kv: str, start: Start, language: Language, block_tokens: int,
                 new_tokens: int, progress: Progress) -> None:
        """kv: how the workers share, as settings.py names it."""
        self.kv = kv
        self.language = language
        self._start = start
        self.new_tokens = new_tokens
        self.progress = progress
        self.ledger = Ledger(block_tokens)
        self.workers: list[Worker] = []
        self.watch: Watch | None = None  # told of each prefill step
        self._started = 0
        self._counts: dict[str, dict[str, int]] = {}
        self._lock = threading.Lock()

    def start(self, number: int) -> list[Worker]:
        """Start so many more, and wait until they can be asked."""
        fresh = []
        for _ in range(number):
            fresh.append(self._start(f"worker-{self._started}", self._hear))
            self._started += 1
        self.workers += fresh
        for worker in fresh:
            worker.wait_ready()
        return fresh

    def kill(self, worker: Worker) -> None:
        worker.kill()
        self.workers.remove(worker)
        self.progress.state(worker.label, "")

    def stop(self) -> None:
        for worker in self.workers:
            worker.ask_to_stop()
        for worker in self.workers:
            worker.stop()

    def counted(self, *names: str) -> int | None:
        """Sum over all workers of what they count; of a killed one as of its last answer. None if
        they do not count it."""
        with self._lock:
            if any(name not in counts for counts in self._counts.values() for name in names):
                return None
            return sum(counts[name] for counts in self._counts.values() for name in names)

    def answer(self, worker: Worker, question: Question) -> Served:
        """Ask and wait."""
        shared = self.ledger.shared_with_others(worker.label, question.prompt)
        reply = worker.ask(question.prompt, self.new_tokens).result(REQUEST_LIMIT)
        # The last token was chosen, but nothing was computed from it.
        self.ledger.sequence(worker.label, [*question.prompt, *reply.tokens[:-1]])
        return self.account(worker, question, reply, shared)

    def account(
        self, worker: Worker, question: Question, reply: Reply, shared: int
    ) -> Served:
        own, others = self.ledger.split(worker.label, reply.reused)
        return Served(
            worker=worker.label, conversation=question.name, turn=question.turn,
            prompt=question.prompt, reply=reply, from_self=own, from_others=others,
            shared=shared, exact=self.ledger.exact(reply.reused),
        )

    def reference(self, chosen: list[Served]) -> None:
        """Ask the same again without reuse: of the same worker, unless another has less to do."""
        work: dict[Worker, list[Served]] = {worker: [] for worker in self.workers}
        for served in chosen:
            worker = min(work, key=lambda w: (len(work[w]), w.label != served.worker))
            work[worker].append(served)

        def again(worker: Worker, served: Served) -> Served:
            reply = worker.ask(served.prompt, self.new_tokens, reuse=False)
            served.cold = reply.result(REQUEST_LIMIT)
            served.comparison = compare(served.reply, served.cold)
            return served

        self.in_parallel(work, again)

    def in_parallel(
        self,
        work: dict[Worker, list[Any]],
        do: Callable[[Worker, Any], Served],
    ) -> list[Served]:
        """Each worker does its list in order, all workers at once."""
        results: list[Served] = []
        failures: list[BaseException] = []

        def run(worker: Worker, items: list[Any]) -> None:
            try:
                for item in items:
                    results.append(do(worker, item))
            except BaseException as error:  # handed to the caller below
                failures.append(error)

        threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in work.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # each request in it has a limit of its own
        if failures:
            raise failures[0]
        return results

    def _hear(self, worker: Worker, message: dict[str, Any]) -> None:
        """In the reader thread of that worker."""
        if message["event"] == "block":
            self.ledger.block(worker.label, message["key"], message["parent"], message["made"])
        elif message["event"] == "progress":
            self.progress.state(worker.label, f"prefill at {message['position']}")
            if self.watch is not None:
                self.watch(worker, message["position"])
        elif message["event"] == "done":
            self.progress.state(worker.label, "")
            with self._lock:
                self._counts[worker.label] = message["counts"]
