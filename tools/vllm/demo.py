# SPDX-License-Identifier: Apache-2.0
"""tools/demo --engine vllm: the demo's course with real vLLM processes as its workers."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator

from ..engine.asking import Event, WorkerError
from ..engine.fleet import Fleet
from ..engine.host import Host, demo_name
from ..engine.progress import Progress
from ..engine.prompts import Prompts
from ..engine.settings import VLLM
from .client import Engine, EngineError, Request
from .environment import python_of_vllm
from .models import models
from .options import Options, kvshm_connector
from .worker import EngineWorker

BLOCK = 32  # tokens
CHUNK = 512  # tokens of a step, so that a worker can be killed between two
SIZE = "1GiB"


class Words:
    """Texts by the model's own tokenizer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def system_turn(self, text: str) -> list[int]:
        return self._engine.tokenize(f"{text}\n", special=True)

    def user_turn(self, text: str) -> list[int]:
        return self._engine.tokenize(f"User: {text}\nAssistant:")

    def end_turn(self) -> list[int]:
        return self._engine.tokenize("\n")


@contextlib.contextmanager
def engines(
    args: argparse.Namespace, prompts: Prompts, progress: Progress
) -> Iterator[tuple[Fleet, Host]]:
    """The workers, yet to be started, beside a running reference that has no cache at all; and
    the arena that the first of them will make."""
    progress.phase("the environment of vLLM")
    python = python_of_vllm()
    model = args.model and args.model.resolve()
    if model is None:
        name = "tiny-llama" if args.tiny else "llama-109m"
        progress.phase(f"the model {name}")
        model = models(python, name)[name]
    arena = demo_name()
    host = Host(arena, args.dir)

    def options(shared: bool) -> Options:
        extra = {"name": arena, "size": args.size or SIZE}
        if args.dir:
            extra["dir"] = args.dir
        return Options(
            model, kvshm_connector(extra) if shared else None, prefix_caching=shared,
            block_size=args.block_tokens or BLOCK, max_num_batched_tokens=CHUNK,
            # In bf16 a token may depend on where a prompt is cut into steps, kvshm or not.
            tensor_parallel=args.tp, args={"dtype": "float32"})

    progress.phase("the reference: vLLM without kvshm")
    with contextlib.ExitStack() as stack:
        stack.callback(host.close, args.keep)
        reference = stack.enter_context(Engine(python, options(False), "reference", wait=False))

        def start(label: str, on_event: Event) -> EngineWorker:
            return EngineWorker(Engine(python, options(True), label, wait=False), reference,
                                CHUNK, on_event)

        try:
            reference.ready()
            # What a process does only once is no part of the comparison.
            reference.generate([Request([i % 200 for i in range(2 * CHUNK)], 2)])
        except EngineError as error:
            raise WorkerError(str(error)) from error
        yield Fleet(VLLM, start, Words(reference), args.block_tokens or BLOCK, args.new_tokens,
                    progress), host
