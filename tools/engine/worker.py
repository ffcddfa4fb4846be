# SPDX-License-Identifier: Apache-2.0
"""A worker: one process with its own model, answering requests given as lines of JSON.

    in   {"op": "generate", "id": 1, "tokens": [...], "new": 8, "reuse": true}   {"op": "stop"}
    out  {"event": "ready", "pid": ..., ...}
         {"event": "progress", "id": 1, "position": 128}      before each prefill step
         {"event": "block", "id": 1, "key": ..., "parent": ..., "made": "prefill"}
         {"event": "done", "id": 1, "tokens": [...], "logits": base64, ...}
         {"event": "error", "id": 1, "error": "..."}

One request at a time: two workers on two cores are to compare, not to compete. The others wait in
line; what the tier has of them may be on its way meanwhile (Settings.prefetch).
"""

from __future__ import annotations

import base64
import json
import os
import queue
import sys
import threading
import time
from typing import Any, TextIO

import torch

from .caches import make_cache
from .engine import Engine
from .kv import OffCache
from .model import Model
from .settings import Settings


class Worker:
    def __init__(self, settings: Settings, output: TextIO) -> None:
        self._output = output
        self._over, self._listening = threading.Event(), threading.Lock()
        began = time.perf_counter()
        model = Model(settings.model, settings.block_tokens)
        loaded = time.perf_counter()
        off = OffCache(settings.model, settings.block_tokens)
        chunk_ms = _warm_up(model, off)
        cache = make_cache(settings, chunk_ms)
        self._engine = Engine(model, cache, off)
        self._say(
            event="ready",
            pid=os.getpid(),
            load_ms=1e3 * (loaded - began),
            chunk_ms=chunk_ms,
        )

    def serve(self, source: TextIO) -> None:
        """Until "stop" or the end of the input, which is also how the parent's death shows."""
        line: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        listener = threading.Thread(target=self._listen, args=(source, line), daemon=True)
        listener.start()
        try:
            while (message := self._next(line)) is not None:
                try:
                    self._engine.cache.begun(message["id"])
                    self._generate(message)
                except BrokenPipeError:
                    raise
                except Exception as error:  # the asker must hear of it; the worker goes on
                    self._say(
                        event="error",
                        id=message.get("id"),
                        error=f"{type(error).__name__}: {error}",
                    )
        finally:
            self._over.set()
            with self._listening:
                self._engine.cache.close()
            listener.join(1)  # it has seen the end too, or is about to

    def _next(self, line: queue.SimpleQueue[dict[str, Any] | None]) -> dict[str, Any] | None:
        if line.empty():
            self._engine.cache.idle()
        return line.get()

    def _listen(self, source: TextIO, line: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        try:
            for text in source:
                message = json.loads(text)
                if message["op"] == "stop":
                    break
                with self._listening:
                    if message["reuse"] and not self._over.is_set():
                        self._engine.cache.enqueued(message["id"], message["tokens"])
                line.put(message)
        finally:
            line.put(None)

    def _generate(self, message: dict[str, Any]) -> None:
        ident = message["id"]

        def registered(key: bytes, parent: bytes, made: str) -> None:
            self._say(event="block", id=ident, key=key.hex(), parent=parent.hex(), made=made)

        def progress(position: int) -> None:
            self._say(event="progress", id=ident, position=position)

        answer = self._engine.generate(
            message["tokens"], message["new"], message["reuse"], registered, progress
        )
        self._say(
            event="done",
            id=ident,
            tokens=answer.tokens,
            logits=base64.b64encode(answer.logits.numpy().tobytes()).decode(),
            ttft_ms=1e3 * answer.ttft,
            reused=[key.hex() for key in answer.reused],
            chunks=answer.chunks,
            counts=vars(self._engine.cache.counts),
        )

    def _say(self, **message: Any) -> None:
        self._output.write(json.dumps(message) + "\n")
        self._output.flush()


def _warm_up(model: Model, off: OffCache) -> float:
    """Milliseconds of one prefill chunk; a first one pays what torch does only once."""
    tokens = [0] * model.block_tokens
    for _ in range(2):
        sequence = off.open(tokens, False, lambda *_: None)
        sequence.extend()
        began = time.perf_counter()
        model.forward(tokens, 0, sequence.blocks)
        took = time.perf_counter() - began
        sequence.close()
    return 1e3 * took


def run(settings: Settings, source: TextIO, output: TextIO) -> None:
    # One thread: the order of additions, and so every bit of a result, must not depend on load.
    torch.set_num_threads(1)
    Worker(settings, output).serve(source)


def main() -> int:
    settings = Settings.parse(sys.argv[1])
    # Whatever a library prints goes to stderr; only messages go where the parent listens.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        run(settings, sys.stdin, output)
    except (BrokenPipeError, KeyboardInterrupt):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
