# SPDX-License-Identifier: Apache-2.0
"""The two kinds of engines, seen alike: workers on one arena with a tier, and one that has
neither."""

from __future__ import annotations

import os
import secrets
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import kvshm

from .load import Asked, Shape, requests_of, working_set

RESULT_LIMIT = 180.0
SLOT_SPARE = 1.25  # of the file: its head, and what is written while the old is not yet given up


class Gone(Exception):
    """A worker ended with the request."""


@dataclass(frozen=True)
class Said:
    tokens: list[int]
    logits: np.ndarray | None  # where the engine tells them
    found: int  # prompt tokens that it did not compute


class Member(Protocol):
    label: str
    how: str  # it uses the arena

    @property
    def pid(self) -> int: ...
    def ready(self) -> None: ...
    def ask(self, asked: Asked) -> Future[Any]: ...
    def answer(self, begun: Future[Any]) -> Said: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class Site(Protocol):
    """An arena of a quarter of what all requests fill, over a file for all of it."""

    what: str
    name: str  # of the arena
    requests: list[Asked]
    blocks: int  # of the arena
    working_set: int  # arena blocks that all requests fill
    depth: int  # requests that a worker is handed at a time

    def start(self, label: str) -> Member: ...
    def reference(self) -> Member: ...
    def attach(self) -> kvshm.Arena: ...
    def close(self) -> None: ...


def _name(what: str) -> str:
    return f"soak-{what}-{os.getpid()}-{secrets.token_hex(2)}"


# ---- the demo's engine ---------------------------------------------------------------------------


class BuiltInMember:
    def __init__(self, settings: Any, label: str) -> None:
        from ..engine.client import WorkerProcess

        self.label, self.how = label, settings.kv
        self._worker = WorkerProcess(settings, label, lambda *_: None)

    @property
    def pid(self) -> int:
        return self._worker.pid

    def ready(self) -> None:
        self._worker.wait_ready()

    def ask(self, asked: Asked) -> Future[Any]:
        return self._worker.ask(asked.tokens, asked.new)

    def answer(self, begun: Future[Any]) -> Said:
        from ..engine.asking import WorkerError

        try:
            reply = begun.result(RESULT_LIMIT)
        except WorkerError as error:
            raise Gone(str(error)) from None
        found = reply.chunks[0][0] if reply.chunks else 0
        return Said(reply.tokens, reply.logits, found)

    def kill(self) -> None:
        self._worker.kill()
        self._worker.stop(1)

    def close(self) -> None:
        self._worker.stop()


class BuiltIn:
    """Every other worker computes in the arena, the others in tensors of their own."""

    SHAPE = Shape(64, (120, 220), (30, 100), (20, 60), (4, 24), 256)
    depth = 3

    def __init__(self, folder: Path, seed: int, groups: int = 1, requests: int = 0) -> None:
        from ..engine.config import default_block_tokens
        from ..engine.host import Host
        from ..engine.settings import ENQUEUE, IN_PLACE, Settings

        shape = replace(self.SHAPE, requests=requests) if requests else self.SHAPE
        tokens = default_block_tokens(True)
        self.what = "built-in" if groups == 1 else f"built-in, {groups} layer groups"
        self.requests = requests_of(shape, seed)
        kv_blocks = working_set(self.requests, tokens)
        self.working_set, self.blocks = kv_blocks * groups, kv_blocks * groups // 4
        settings = Settings(IN_PLACE, True, 0, tokens, layer_groups=groups, layers=4)
        self._host = Host.create(settings, self.blocks, "")
        self.name = self._host.name
        slot = -(-settings.part_bytes // 4096) * 4096
        self._settings = replace(
            settings, arena=self.name, tier=(str(folder / self.name),),
            tier_size=str(int(self.working_set * (slot + 64) * SLOT_SPARE) + (1 << 20)),
            prefetch=ENQUEUE, prefetch_ahead=kv_blocks // 16, own_blocks=kv_blocks // 16)
        self._started = 0

    def start(self, label: str) -> BuiltInMember:
        from ..engine.settings import COPY

        self._started += 1
        mine = replace(self._settings, kv=COPY) if self._started % 2 == 0 else self._settings
        return BuiltInMember(mine, label)

    def reference(self) -> BuiltInMember:
        from ..engine.settings import OFF

        return BuiltInMember(replace(self._settings, kv=OFF, tier=()), "reference")

    def attach(self) -> kvshm.Arena:
        return kvshm.Arena.attach(self.name, label="soak", pin="off")

    def close(self) -> None:
        self._host.close(False)


# ---- vLLM ----------------------------------------------------------------------------------------


class VllmMember:
    def __init__(self, engine: Any) -> None:
        self.label, self.how, self._engine = engine.label, "copy", engine

    @property
    def pid(self) -> int:
        return int(self._engine.pid)

    def ready(self) -> None:
        from ..vllm.client import EngineError

        try:
            self._engine.ready()
        except EngineError as error:
            raise Gone(str(error)) from None

    def ask(self, asked: Asked) -> Future[Any]:
        from ..vllm.client import Request

        begun: Future[Any] = self._engine.begin([Request(asked.tokens, asked.new)])
        return begun

    def answer(self, begun: Future[Any]) -> Said:
        from ..vllm.client import EngineError

        try:
            (one,) = self._engine.answers(begun, RESULT_LIMIT)
        except EngineError as error:
            raise Gone(str(error)) from None
        return Said(one.tokens, None, one.num_cached_tokens)

    def kill(self) -> None:
        self._engine.kill()
        self._engine.close()

    def close(self) -> None:
        self._engine.close()


class Vllm:
    """Its KV lies in CPU tensors: blocks of its own for little more than one request."""

    SHAPE = Shape(24, (320, 420), (60, 170), (30, 120), (8, 24), 2048)
    MODEL, TOKENS = "tiny-llama", 32
    BLOCK_BYTES = 4 * 2 * TOKENS * 128 * 4  # layers, KV heads, tokens, K and V, float32
    OWN_BLOCKS = 40
    depth = 2
    what = "vLLM"

    def __init__(self, folder: Path, seed: int, requests: int = 0) -> None:
        """Raises Absent where there is no environment of it."""
        from ..vllm.environment import python_of_vllm
        from ..vllm.models import models
        from ..vllm.options import Options, kvshm_connector

        shape = replace(self.SHAPE, requests=requests) if requests else self.SHAPE
        self.requests = requests_of(shape, seed)
        self.working_set = working_set(self.requests, self.TOKENS)
        self.blocks = self.working_set // 4
        self._python = python_of_vllm()
        model = models(self._python, self.MODEL)[self.MODEL]
        self.name = _name("vllm")
        connector = kvshm_connector({
            "name": self.name, "size": self._arena_bytes(), "tier": str(folder / self.name),
            "tier_size": int(self.working_set * (self.BLOCK_BYTES + 64) * SLOT_SPARE) + (1 << 20),
            "prefetch_ahead": self.blocks // 4})
        # In bf16 a token may depend on where a prompt is cut into steps, kvshm or not.
        self._plain = Options(model, None, self.TOKENS, max_model_len=1024, prefix_caching=False,
                              args={"dtype": "float32"})
        self._options = replace(self._plain, connector=connector, prefix_caching=True,
                                num_gpu_blocks=self.OWN_BLOCKS)

    def _arena_bytes(self) -> int:
        """With its metadata. Engines make it anew: it is gone when the last of them has ended."""
        with kvshm.Arena.create(self.name, blocks=self.blocks, block_bytes=self.BLOCK_BYTES,
                                pin="off") as arena:
            size = arena.info().bytes
        kvshm.remove(self.name)
        return size

    def start(self, label: str) -> VllmMember:
        from ..vllm.client import Engine

        return VllmMember(Engine(self._python, self._options, label, wait=False))

    def reference(self) -> VllmMember:
        from ..vllm.client import Engine

        return VllmMember(Engine(self._python, self._plain, "reference", wait=False))

    def attach(self) -> kvshm.Arena:
        return kvshm.Arena.attach(self.name, label="soak", pin="off")

    def close(self) -> None:
        try:
            kvshm.remove(self.name, force=True)
        except kvshm.Error:
            pass  # no engine came so far


def answers_of(site: Site, say: Any) -> list[Said]:
    """Of an engine without kvshm, to each request."""
    with ExitStack() as stack:
        plain = site.reference()
        stack.callback(plain.close)
        plain.ready()
        say(f"{site.what}: {len(site.requests)} answers without kvshm")
        return [plain.answer(plain.ask(one)) for one in site.requests]


def same(said: Said, wanted: Said) -> bool:
    """Bit by bit, where the engine tells that much: whatever is reused was computed in whole
    blocks."""
    if said.logits is None or wanted.logits is None:
        return said.tokens == wanted.tokens
    return said.tokens == wanted.tokens and np.array_equal(said.logits, wanted.logits)
