# SPDX-License-Identifier: Apache-2.0
"""Fifty random kills of engine workers at work: the arena is whole, the others' answers are right.

The workers are those of tools/demo (tiny model, KV in place); they come from a fork server that has
torch loaded, as fifty imports of it would take minutes.
"""

from __future__ import annotations

import base64
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvshm.tools.engine import worker as worker_module  # noqa: E402
from kvshm.tools.engine.compare import TOLERANCE  # noqa: E402
from kvshm.tools.engine.config import TINY  # noqa: E402
from kvshm.tools.engine.engine import Engine  # noqa: E402
from kvshm.tools.engine.host import Host  # noqa: E402
from kvshm.tools.engine.kv import OffCache  # noqa: E402
from kvshm.tools.engine.model import Model  # noqa: E402
from kvshm.tools.engine.settings import IN_PLACE, Settings  # noqa: E402

KILLS = 50
WORKERS = 3
BLOCK = 16
# Half of what all prompts together need, so that there is always something to compute and to evict.
BLOCKS = 120
NEW = 20  # more than a block: decoding fills blocks too
CLEAN_SECONDS = 2.0
ANSWER_SECONDS = 30.0


def serve(settings: Settings, requests: Connection, answers: Connection) -> None:
    with os.fdopen(requests.fileno(), "r", closefd=False) as source:
        with os.fdopen(answers.fileno(), "w", closefd=False) as output:
            worker_module.run(settings, source, output)


class Worker:
    def __init__(self, context, settings: Settings) -> None:
        inner_requests, self._requests = context.Pipe(duplex=False)
        self._answers, inner_answers = context.Pipe(duplex=False)
        self._buffer = b""
        self.process = context.Process(target=serve, daemon=True,
                                       args=(settings, inner_requests, inner_answers))
        self.process.start()
        inner_requests.close()
        inner_answers.close()
        self.asked: int | None = None

    def wait_ready(self) -> None:
        assert self._next(time.monotonic() + ANSWER_SECONDS)["event"] == "ready"

    def ask(self, number: int, prompt: list[int]) -> None:
        message = {"op": "generate", "id": number, "tokens": prompt, "new": NEW, "reuse": True}
        self.asked = number
        try:
            data = (json.dumps(message) + "\n").encode()
            while data:
                data = data[os.write(self._requests.fileno(), data):]
        except BrokenPipeError:
            pass

    def answer(self) -> dict | None:
        """The answer to the last question, or None once the worker is dead without one."""
        end = time.monotonic() + ANSWER_SECONDS
        while (message := self._next(end)) is not None:
            assert message["event"] != "error", message
            if message["event"] == "done" and message["id"] == self.asked:
                return message
        return None

    def _next(self, end: float) -> dict | None:
        while b"\n" not in self._buffer:
            assert self._answers.poll(max(0.0, end - time.monotonic())), "no answer in time"
            data = os.read(self._answers.fileno(), 1 << 16)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(30)

    def close(self) -> None:
        self.kill()
        self._requests.close()
        self._answers.close()


class Prompts:
    """Prompts over three shared beginnings, with the answers that a lone engine gives."""

    def __init__(self, rng: random.Random) -> None:
        stems = [[rng.randrange(256) for _ in range(length)] for length in (150, 333, 480)]
        self.all = [
            rng.choice(stems) + [rng.randrange(256) for _ in range(rng.randrange(1, 150))]
            for _ in range(24)
        ]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        off = OffCache(TINY, BLOCK)
        engine = Engine(Model(TINY, BLOCK), off, off)
        self._answers = [
            engine.generate(prompt, NEW, False, lambda *_: None, lambda _: None)
            for prompt in self.all
        ]
        torch.set_num_threads(threads)

    def check(self, number: int, message: dict) -> None:
        """Tokens and logits of a worker's answer, up to the first near tie."""
        expected = self._answers[number]
        logits = np.frombuffer(base64.b64decode(message["logits"]), np.float32).reshape(NEW, -1)
        for i, token in enumerate(message["tokens"]):
            right = expected.logits[i].numpy()
            assert np.abs(logits[i] - right).max() <= TOLERANCE
            if token != expected.tokens[i]:
                best, second = np.sort(right)[:-3:-1]
                assert best - second <= TOLERANCE
                return


def verify(name: str) -> None:
    """The inspector's word on a live arena, from a process of its own, and the library's."""
    ran = subprocess.run([sys.executable, "-m", "kvshm.tools.cli", "verify", name, "--json",
                          "--core"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    document = json.loads(ran.stdout)
    assert document["broken"] == 0 and document["core"] == []


def typical_seconds(workers: list[Worker], prompts: Prompts, rng: random.Random) -> float:
    """How long all of them together take for a question each, on this machine, now."""
    took = []
    for worker in workers:
        worker.wait_ready()
    for _ in range(4):
        began = time.monotonic()
        for worker in workers:
            number = rng.randrange(len(prompts.all))
            worker.ask(number, prompts.all[number])
        for worker in workers:
            message = worker.answer()
            assert message is not None
            prompts.check(worker.asked, message)
        took.append(time.monotonic() - began)
    return min(took)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(400)
def test_fifty_random_kills_of_working_engines():
    seed = int(os.environ.get("KVSHM_TEST_SEED", time.time_ns() % 10**9))
    print(f"seed {seed} (KVSHM_TEST_SEED)")
    rng = random.Random(seed)
    prompts = Prompts(rng)
    settings = Settings(kv=IN_PLACE, tiny=True, seed=0, block_tokens=BLOCK)
    host = Host.create(settings, BLOCKS, "")
    settings = replace(settings, arena=host.name)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([worker_module.__name__, "kvshm.tools.engine.kv_arena"])
    workers = [Worker(context, settings) for _ in range(WORKERS)]
    answered = unfinished = attached = 0
    try:
        span = typical_seconds(workers, prompts, rng)
        for _ in range(KILLS):
            for worker in workers:
                number = rng.randrange(len(prompts.all))
                worker.ask(number, prompts.all[number])
            time.sleep(rng.uniform(0, span))  # from "has read the question" to "has answered"
            victim = workers.pop(rng.randrange(WORKERS))
            attached += host.has_slot(victim.process.pid)
            victim.kill()
            assert host.wait_gone(victim.process.pid, CLEAN_SECONDS), "its slot was not given back"
            verify(host.name)  # while the others go on
            last_words = victim.answer()
            if last_words is None:
                unfinished += 1
            else:
                prompts.check(victim.asked, last_words)
            victim.close()
            for worker in workers:
                message = worker.answer()
                assert message is not None, "a survivor died"
                prompts.check(worker.asked, message)
                answered += 1
            assert host.broken_when_quiet(CLEAN_SECONDS) == []
            workers.append(Worker(context, settings))
            if rng.random() < 0.8:  # the others may be killed in the middle of attaching
                workers[-1].wait_ready()
        stats = host.stats()
        assert answered == KILLS * (WORKERS - 1)
        # Else the kills came too early or too late to mean anything.
        print(f"{attached} attached, {unfinished} unfinished of {KILLS}")
        assert attached >= KILLS // 2 and unfinished >= KILLS // 4
        assert stats["evicted_total"] > 0 and stats["hits_total"] > 0
        assert stats["blocks_free"] + stats["blocks_inactive"] == BLOCKS
        assert stats["copy_in_bytes_total"] == stats["copy_out_bytes_total"] == 0
    finally:
        for worker in workers:
            worker.close()
        host.close(keep=False)
