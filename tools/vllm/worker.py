# SPDX-License-Identifier: Apache-2.0
"""A vLLM process as a worker of the demo: its requests, and which blocks it has computed."""

from __future__ import annotations

import hashlib
from array import array
from concurrent.futures import Future
from typing import Any

from ..engine.asking import Event, Reply, WorkerError
from ..engine.kv import PREFILL
from .client import Engine, EngineError, Request

# Shorter than a block, so that nothing of it is saved.
WARM_UP = [7] * 20


class EngineWorker:
    """What is asked without reuse goes to `reference`, an engine without any cache."""

    def __init__(self, engine: Engine, reference: Engine, chunk: int, on_event: Event) -> None:
        """chunk: prompt tokens that it computes in a step, at most."""
        self.label = engine.label
        self._engine = engine
        self._reference = reference
        self._chunk = chunk
        self._block = engine.options.block_size
        self._tell = on_event
        self._asked: list[str] = []  # keys of the request in hand: there is one at a time

    @property
    def pid(self) -> int:
        return self._engine.pid

    def wait_ready(self) -> None:
        try:
            self._engine.ready()
            self._engine.generate([Request(WARM_UP, 2)])
            self._engine.on_progress = self._progress
        except EngineError as error:
            raise WorkerError(str(error)) from error

    def ask(self, tokens: list[int], new: int, reuse: bool = True) -> Future[Reply]:
        if reuse:
            self._asked = self._keys(tokens)
        engine = self._engine if reuse else self._reference
        reply: Future[Reply] = Future()

        def done(begun: Future[Any]) -> None:
            try:
                (answer,) = engine.answers(begun, 0)
            except EngineError as error:
                reply.set_exception(WorkerError(str(error)))
                return
            reused = self._keys(tokens)[:answer.num_cached_tokens // self._block]
            if reuse:
                # The last token was chosen, but nothing was computed from it.
                self._computed(self._keys([*tokens, *answer.tokens[:-1]]), len(reused), "decoded")
                self._tell(self, {"event": "done", "counts": {}})
            assert answer.ttft_ms is not None
            reply.set_result(Reply(answer.tokens, None, answer.ttft_ms, reused, [], {}))

        engine.begin([Request(tokens, new)]).add_done_callback(done)
        return reply

    def kill(self) -> None:
        self._engine.kill()

    def ask_to_stop(self) -> None:
        pass  # stop() takes a second

    def stop(self) -> None:
        self._engine.close()

    def _progress(self, request: str, position: int) -> None:
        first = max(0, position - self._chunk)
        self._computed(self._asked[:position // self._block], first // self._block, PREFILL)
        self._tell(self, {"event": "progress", "position": position})

    def _computed(self, keys: list[str], first: int, made: str) -> None:
        for i in range(first, len(keys)):
            self._tell(self, {"event": "block", "key": keys[i], "made": made,
                              "parent": keys[i - 1] if i else ""})

    def _keys(self, tokens: list[int]) -> list[str]:
        """For the demo's books alone: one for each full block, chained."""
        digest, keys = hashlib.sha256(), []
        for at in range(0, len(tokens) - len(tokens) % self._block, self._block):
            digest.update(array("I", tokens[at:at + self._block]).tobytes())
            keys.append(digest.hexdigest())
        return keys
