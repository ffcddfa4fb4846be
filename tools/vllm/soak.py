# SPDX-License-Identifier: Apache-2.0
"""tools/soak vllm: two real vLLM engines at once on an arena that holds a third of their blocks."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import kvshm

from ..environments import Absent
from .client import Answer, Engine, EngineError, Request
from .environment import python_of_vllm
from .models import models
from .options import Options, kvshm_connector

MODEL = "tiny-llama"
TOKENS = 32  # of a block
BLOCK_BYTES = 4 * 2 * TOKENS * 128 * 4  # layers, KV heads, tokens, K and V, float32
OWN_BLOCKS = 40  # of an engine: little more than one request, so that it asks the arena
AT_ONCE = 5  # requests that an engine is handed
SAMPLE = 20  # answers that are compared

Say = Callable[[str], None]


def requests_of(count: int, seed: int = 0) -> list[Request]:
    """Prompts of 350 to 690 tokens that share their beginnings: one of `count / 16` of 320 tokens,
    and with others of it one of three continuations."""
    some = random.Random(seed)

    def tokens(n: int) -> list[int]:
        return [some.randrange(2048) for _ in range(n)]

    trunks = [tokens(320) for _ in range(max(2, count // 16))]
    branches = [[tokens(some.choice((0, 96, 170))) for _ in range(3)] for _ in trunks]
    found = []
    for _ in range(count):
        i = some.randrange(len(trunks))
        prompt = trunks[i] + some.choice(branches[i]) + tokens(some.randint(30, 200))
        found.append(Request(prompt, some.randint(8, 40)))
    return found


def working_set(requests: Sequence[Request]) -> int:
    """Different blocks that the requests fill. The last token has no KV."""
    shared = {tuple(one.prompt_token_ids[:end]) for one in requests
              for end in range(TOKENS, len(one.prompt_token_ids) + 1, TOKENS)}
    decoded = sum((len(one.prompt_token_ids) + one.max_tokens - 1) // TOKENS
                  - len(one.prompt_token_ids) // TOKENS for one in requests)
    return len(shared) + decoded


def soak(count: int, seed: int, say: Say) -> dict[str, Any]:
    """The document. Raises Absent, EngineError if an engine does not start, kvshm.Error."""
    python = python_of_vllm()
    model = models(python, MODEL)[MODEL]
    requests = requests_of(count, seed)
    blocks = working_set(requests)
    name = f"soak-vllm-{os.getpid()}"
    connector = kvshm_connector({"name": name, "size": _arena_size(name, blocks // 3)})
    began = time.monotonic()
    with ExitStack() as stack:
        stack.callback(_remove, name)

        def start(label: str, options: Options) -> Engine:
            return stack.enter_context(Engine(python, options, label, wait=False))

        # In bf16 a token may depend on how much of its prompt was found, with kvshm or without.
        plain_options = Options(model, None, TOKENS, max_model_len=1024, prefix_caching=False,
                                args={"dtype": "float32"})
        options = replace(plain_options, connector=connector, prefix_caching=True,
                          num_gpu_blocks=OWN_BLOCKS)
        engines = [start(label, options) for label in "ab"]
        plain = start("plain", plain_options)
        for engine in (*engines, plain):
            engine.ready()
        say(f"started after {time.monotonic() - began:.0f} s")
        arena = stack.enter_context(kvshm.Arena.attach(name, label="soak", pin="off"))
        began = time.monotonic()
        with ThreadPoolExecutor(len(engines)) as pool:
            done = list(pool.map(lambda i: _serve(engines[i], requests[i::2], say),
                                 range(len(engines))))
        seconds = time.monotonic() - began
        answers: list[Answer | None] = [None] * count
        for i, its in enumerate(done):
            answers[i::2] = its
        for engine in engines:
            engine.step(2)  # reports of the last saves come with a step
        metrics = [engine.metrics() for engine in engines]
        stats = arena.stats()
        verified = subprocess.run([sys.executable, "-m", "kvshm.tools.cli", "verify", name],
                                  capture_output=True, text=True, timeout=120)
        say(f"served in {seconds:.0f} s; comparing")
        right = _right(plain, requests, answers)

    def total(field: str) -> int:
        return int(sum(one.get(f"vllm:kvshm_{field}_total", 0) for one in metrics))

    return {
        "requests": count, "seed": seed, "failed": _failed(answers),
        "seconds": round(seconds, 1), "arena_blocks": arena.blocks, "working_set": blocks,
        **{field: total(field) for field in (
            "asked_tokens", "local_tokens", "memory_tokens", "loaded_blocks", "failed_blocks",
            "saved_blocks", "failed_saves", "refused_blocks")},
        "evicted_blocks": stats.evicted_total, "held": stats.blocks_held,
        "filling": stats.blocks_filling,
        "verify": verified.returncode, "verify_says": (verified.stdout + verified.stderr).strip(),
        "compared": len(right), "right": sum(right),
    }


def _arena_size(name: str, blocks: int) -> int:
    """With its metadata."""
    with kvshm.Arena.create(name, blocks=blocks, block_bytes=BLOCK_BYTES, pin="off") as arena:
        size = arena.info().bytes
    kvshm.remove(name)
    return size


def _serve(engine: Engine, requests: list[Request], say: Say) -> list[Answer | None]:
    found: list[Answer | None] = []
    try:
        while len(found) < len(requests):
            found += engine.generate(requests[len(found):len(found) + AT_ONCE])
            if len(found) % 25 < AT_ONCE:
                say(f"{engine.label}: {len(found)} of {len(requests)} requests")
    except EngineError as error:
        say(str(error))
    return found + [None] * (len(requests) - len(found))


def _failed(answers: list[Answer | None]) -> int:
    return sum(one is None or one.finish_reason != "length" for one in answers)


def _right(plain: Engine, requests: list[Request], answers: list[Answer | None]) -> list[bool]:
    """Of a sample, whether its tokens are those of an engine that keeps nothing."""
    chosen = range(0, len(requests), max(1, len(requests) // SAMPLE))
    wanted = plain.generate([requests[i] for i in chosen])
    return [answer is not None and answer.tokens == one.tokens
            for one, answer in zip(wanted, (answers[i] for i in chosen))]


def _remove(name: str) -> None:
    try:
        kvshm.remove(name, force=True)
    except kvshm.Error:
        pass  # no engine came so far


def holds(document: dict[str, Any]) -> bool:
    """Whether everything is as it must be."""
    return (not any(document[field] for field in (
        "failed", "held", "filling", "verify", "failed_blocks", "failed_saves"))
        and document["right"] == document["compared"] > 0 and document["evicted_blocks"] > 0
        and document["memory_tokens"] > 0
        and 3 * document["arena_blocks"] <= document["working_set"])


def table(document: dict[str, Any]) -> str:
    rows = [f"{name.replace('_', ' '):20}{value:>12,}" for name, value in document.items()
            if not isinstance(value, str)]
    return "\n".join([*rows, "It holds." if holds(document) else "It does not hold."])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tools/soak vllm",
        description="Requests with shared prefixes to two real vLLM engines at once, on an arena "
                    "of a third of their blocks. Exit status 0 if no request failed, nothing is "
                    "held at the end, the arena is valid, and a sample of the answers is that of "
                    "an engine without kvshm; 1 if not; 2 if vLLM cannot be had or started.")
    parser.add_argument("--requests", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", action="store_true", help="one JSON document, no table")
    args = parser.parse_args(argv)
    try:
        document = soak(args.requests, args.seed,
                        lambda line: print(line, file=sys.stderr, flush=True))
    except (Absent, EngineError, kvshm.Error) as error:
        print(f"tools/soak vllm: {error}", file=sys.stderr)
        return 2
    print(json.dumps(document) if args.json else table(document))
    return 0 if holds(document) else 1


if __name__ == "__main__":
    sys.exit(main())
