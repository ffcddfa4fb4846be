# SPDX-License-Identifier: Apache-2.0
"""Requests to the engine, step by step: greedy, so that equal KV gives equal tokens."""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]


class _One:
    def __init__(self, name: str, prompt: int) -> None:
        self.name = name
        self.prompt = prompt
        self.began = time.perf_counter()
        self.first: float | None = None  # when the first token came
        self.told = 0  # prompt tokens computed, as last told
        self.answer: Message = {"id": name, "tokens": [], "num_cached_tokens": 0,
                                "finish_reason": None}

    def take(self, output: Any) -> None:
        (completion,) = output.outputs
        self.answer.update(
            tokens=list(completion.token_ids), finish_reason=completion.finish_reason,
            num_cached_tokens=output.num_cached_tokens or 0)
        now = time.perf_counter()
        if self.first is None and completion.token_ids:
            self.first = now
        if output.finished:
            self.answer["total_ms"] = 1e3 * (now - self.began)
        self.answer["ttft_ms"] = None if self.first is None else 1e3 * (self.first - self.began)


class Requests:
    def __init__(self, engine: Any, tell: Callable[[Message], None]) -> None:
        self._engine = engine
        self._tell = tell
        self._open: dict[str, _One] = {}
        self._internal: dict[str, str] = {}  # the engine's id of each
        self._numbers = itertools.count()
        core = getattr(engine.engine_core, "engine_core", None)
        self._scheduler = getattr(core, "scheduler", None)  # None: in another process

    def generate(self, requests: list[Message], together: bool) -> list[Message]:
        answers: dict[str, Message] = {}
        names = []
        for request in requests:
            names.append(self.add(request))
            if not together:
                self._finish(answers)
        self._finish(answers)
        return [answers[name] for name in names]

    def _finish(self, answers: dict[str, Message]) -> None:
        while self._open:
            answers.update((one["id"], one) for one in self.step(1)["finished"])
            self._progress()

    def add(self, request: Message) -> str:
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        name = request.get("id") or f"r{next(self._numbers)}"
        assert name not in self._open, f"{name} is in flight"
        prompt: Message = {"prompt_token_ids": request["prompt_token_ids"]}
        if request.get("cache_salt"):
            prompt["cache_salt"] = request["cache_salt"]
        lora = request.get("lora")
        self._open[name] = _One(name, len(request["prompt_token_ids"]))
        try:
            self._internal[name] = self._engine.add_request(
                name, prompt,
                SamplingParams(temperature=0.0, max_tokens=request.get("max_tokens", 16),
                               ignore_eos=True, detokenize=False),
                lora_request=lora and LoRARequest(
                    lora["name"], lora.get("id") or zlib.crc32(lora["name"].encode()) % 2**31 + 1,
                    lora["path"]),
                priority=request.get("priority", 0))
        except BaseException:
            del self._open[name]
            raise
        return name

    def step(self, count: int) -> Message:
        """In one process also without requests, as a connector may have work left."""
        finished = []
        for _ in range(count):
            if not self._open and self._scheduler is None:
                break  # it would wait for ever
            for output in self._engine.step():
                one = self._open.get(output.request_id)
                if one is None:
                    continue  # aborted
                one.take(output)
                if output.finished:
                    finished.append(self._forget(one.name).answer)
        return {"finished": finished, "computed": self._computed(),
                "open": {name: one.answer["tokens"] for name, one in self._open.items()}}

    def abort(self, names: list[str]) -> None:
        self._engine.abort_request(names)
        for name in names:
            if name in self._open:
                self._forget(name)

    def _forget(self, name: str) -> _One:
        del self._internal[name]
        return self._open.pop(name)

    def _computed(self) -> dict[str, int]:
        """Tokens of each open request whose KV is there, where the scheduler is in reach."""
        if self._scheduler is None:
            return {}
        known = self._scheduler.requests
        return {name: known[internal].num_computed_tokens
                for name, internal in self._internal.items() if internal in known}

    def _progress(self) -> None:
        for name, computed in self._computed().items():
            one = self._open[name]
            position = min(computed, one.prompt)
            if position != one.told:
                one.told = position
                self._tell({"event": "progress", "request": name, "position": position})
