# SPDX-License-Identifier: Apache-2.0
"""Engines in processes of their own on one arena: what one has computed the others load.

Three engines stay for the whole module: one without a connector that gives the right tokens, A with
synchronous loads and B with asynchronous ones. All prefill in chunks of 256 tokens. Each test has
prompts of its own.

How a prefill is split decides the last bits of its KV, and so a near tie between two tokens: tokens
are held against those of the same split.
"""
from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import kvshm
import pytest
from kvshm.tools.vllm.client import Answer, Engine, Lora, Request, close_all
from kvshm.tools.vllm.options import kvshm_connector

NAME = f"test-vllm-{os.getpid()}"


def prompt(seed: int, tokens: int = 1000) -> list[int]:
    some = random.Random(seed)
    return [some.randrange(2048) for _ in range(tokens)]


@dataclass
class Trio:
    plain: Engine
    a: Engine
    b: Engine

    def right(self, request: Request, cached: int = 0) -> list[int]:
        """Tokens of an engine that has no connector, and so many of the prompt's in its own cache,
        computed in the chunks of the whole prompt."""
        self.plain.reset_prefix_cache()
        if cached:
            tokens = request.prompt_token_ids
            others = [(token + 1) % 2048 for token in tokens[cached:]]
            one(self.plain, replace(request, prompt_token_ids=tokens[:cached] + others))
        answer = one(self.plain, request)
        assert answer.num_cached_tokens == cached
        return answer.tokens


def one(engine: Engine, request: Request) -> Answer:
    (answer,) = engine.generate([request])
    return answer


@pytest.fixture(scope="module")
def trio(new_engine) -> Iterator[Trio]:
    def start(label: str, **extra) -> Engine:
        connector = kvshm_connector({"name": NAME, "size": "128MiB", **extra}) if extra else None
        told = {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}}
        return new_engine(label=label, wait=False, enable_lora=True, max_num_batched_tokens=256,
                          connector=connector, args=told if extra else {})

    engines = Trio(start("plain"), start("a", load="sync", events=True),
                   start("b", load="async", events=True))
    for engine in (engines.plain, engines.a, engines.b):
        engine.ready()
    try:
        yield engines
    finally:
        close_all((engines.plain, engines.a, engines.b))
        kvshm.remove(NAME, force=True)


def at_rest(engine: Engine) -> None:
    """Nothing is held: a copy that was under way ends in its own time, its report is taken by the
    next step."""
    rest = {"held": 0, "filling": 0, "loading": 0, "saving": 0, "states": 0}
    until = time.monotonic() + 20
    while (left := engine.call("faults:holds")) != rest and time.monotonic() < until:
        engine.step(1)
        time.sleep(0.02)
    assert left == rest
    assert engine.call("faults:broken") == []


@pytest.mark.parametrize("stores, loads, seed", [("a", "b", 1), ("b", "a", 2)])
def test_what_one_engine_computed_the_other_loads(trio, stores, loads, seed):
    """b loads asynchronously, a within its step; the tokens are those of an engine without."""
    request = Request(prompt(seed), 16)
    first = one(getattr(trio, stores), request)
    assert first.num_cached_tokens == 0
    second = one(getattr(trio, loads), request)
    assert second.num_cached_tokens == 992  # every full block of 32
    assert (first.tokens, second.tokens) == (trio.right(request), trio.right(request, 992))
    at_rest(trio.a)


def test_an_engine_that_loads_zeros_answers_otherwise(trio):
    """So equal tokens do show that what was loaded was used."""
    request = Request(prompt(3), 16)
    one(trio.a, request)
    trio.b.call("faults:zero_loads", True)
    try:
        answer = one(trio.b, request)
    finally:
        trio.b.call("faults:zero_loads", False)
    assert answer.num_cached_tokens == 992
    right = trio.right(request, 992)
    assert answer.tokens != right
    trio.b.reset_prefix_cache()  # the zeros are in its own cache
    assert one(trio.b, request).tokens == right


@pytest.mark.parametrize("loads", ["a", "b"])
@pytest.mark.parametrize("index", [0, 3, 30])
def test_a_block_that_is_not_loaded_is_computed(trio, loads, index):
    stores = trio.b if loads == "a" else trio.a
    engine = getattr(trio, loads)
    request = Request(prompt(100 + 10 * index + (loads == "b")), 16)
    one(stores, request)
    stored = stores.call("faults:block_bytes", request.prompt_token_ids)
    assert len(stored) == 31
    engine.call("faults:fail_block", index)
    answer = one(engine, request)
    assert answer.tokens == trio.right(request, 32 * index)
    log = engine.log()
    assert f"{31 - index} of 31 blocks were not loaded" in log
    at_rest(engine)
    # What it computed instead is right, for itself and for others.
    own, right = one(engine, request), one(trio.plain, request)
    assert (own.num_cached_tokens, right.num_cached_tokens) == (992, 992)
    assert own.tokens == right.tokens
    assert stores.call("faults:block_bytes", request.prompt_token_ids) == stored
    engine.reset_prefix_cache()
    again = one(engine, request)
    assert again.num_cached_tokens == 992 and again.tokens == trio.right(request, 992)


def test_blocks_that_decoding_filled_are_found(trio):
    request = Request(prompt(4, 200), 80)
    answer = one(trio.a, request)
    longer = Request(request.prompt_token_ids + answer.tokens, 8)
    # KV that decoding made differs from a prefill's in its last bits: the right answer is that of
    # the engine that made it, going on with its own.
    own = one(trio.a, longer)
    follow = one(trio.b, longer)
    assert own.num_cached_tokens == (200 + 79) // 32 * 32  # the last token has no KV yet
    assert (follow.num_cached_tokens, follow.tokens) == (own.num_cached_tokens, own.tokens)


def test_a_prompt_of_whole_blocks_leaves_one_token_to_compute(trio):
    """Semantics 47."""
    for tokens, cached in ((320, 288), (33, 32), (32, 0), (31, 0)):
        request = Request(prompt(5, 1000)[:tokens], 4)
        one(trio.a, request)
        answer = one(trio.b, request)
        assert answer.num_cached_tokens == cached
        assert answer.tokens == trio.right(request, cached)
        trio.a.reset_prefix_cache()
        trio.b.reset_prefix_cache()


def test_chunks_are_shared_before_the_prefill_is_over(trio):
    name = trio.a.add(Request(prompt(6), 2))
    trio.a.step(2)
    answer = one(trio.b, Request(prompt(6), 16))
    assert answer.num_cached_tokens == 512
    assert answer.tokens == trio.right(Request(prompt(6), 16), 512)
    trio.a.abort(name)
    at_rest(trio.a)


def test_an_abort_during_a_load_or_a_save_leaves_nothing_behind(trio):
    one(trio.a, Request(prompt(7), 2))
    name = trio.b.add(Request(prompt(7), 16))
    trio.b.step(1)  # the load is under way or just over
    trio.b.abort(name)
    at_rest(trio.b)
    name = trio.b.add(Request(prompt(8), 16))
    trio.b.step(1)
    trio.b.abort(name)
    at_rest(trio.b)
    answer = one(trio.a, Request(prompt(8), 16))
    assert answer.num_cached_tokens == 256  # its first chunk was saved, and is right
    assert answer.tokens == trio.right(Request(prompt(8), 16), 256)


def test_salts_and_adapters_are_kept_apart(trio, model):
    """S30, S34: each finds its own and nothing of the others."""
    tokens = prompt(9)
    kinds = [{}, {"cache_salt": "one"}, {"cache_salt": "two"},
             {"lora": Lora("x", str(model("lora-a")))}, {"lora": Lora("y", str(model("lora-b")))}]
    for kind in kinds:
        assert one(trio.a, Request(tokens, 2, **kind)).num_cached_tokens == 0
    for kind in kinds:
        request = Request(tokens, 16, **kind)
        answer = one(trio.b, request)
        assert answer.num_cached_tokens == 992
        assert answer.tokens == trio.right(request, 992)
    same_name = {"lora": Lora("x", str(model("lora-b")))}  # other weights under a known name
    assert one(trio.b, Request(tokens, 2, **same_name)).num_cached_tokens == 0


def test_a_reset_with_the_connector_is_for_all_engines(trio):
    """S75: new weights, say: nothing older is found by anybody."""
    request = Request(prompt(10), 4)
    one(trio.a, request)
    assert trio.b.reset_prefix_cache(reset_connector=True)
    trio.a.reset_prefix_cache()
    assert one(trio.a, request).num_cached_tokens == 0
    assert one(trio.b, request).num_cached_tokens == 992  # of the new epoch
    at_rest(trio.a)


def test_events_come_from_the_engine_that_stored(trio):
    tokens = prompt(15, 320)
    for engine in (trio.a, trio.b):
        engine.call("faults:hear_events")
    one(trio.a, Request(tokens, 1))
    stored = trio.a.call("faults:heard", "CPU")
    assert [event["kind"] for event in stored] == ["BlockStored"] * len(stored)
    hashes = [value for event in stored for value in event["hashes"]]
    assert len(set(hashes)) == 10
    assert [token for event in stored for token in event["tokens"]] == tokens
    assert stored[0]["parent"] is None and stored[0]["size"] == 32
    assert [event["parent"] for event in stored[1:]] == [
        before["hashes"][-1] for before in stored[:-1]]
    one(trio.b, Request(tokens, 1))  # it loads 9 of them and stores none
    assert trio.b.call("faults:heard", "CPU") == []


def test_explain_derives_the_engines_keys_from_a_prompt(trio, tmp_path):
    """Outside the engine, without vLLM: 31 blocks of a prompt are there, a longer one's are not."""
    one(trio.a, Request(prompt(12), 2))
    one(trio.a, Request(prompt(13), 2, cache_salt="mine"))

    def explain(tokens: list[int], *more: str) -> dict:
        (tmp_path / "prompt").write_text(json.dumps(tokens))
        done = subprocess.run(
            [sys.executable, "-m", "kvshm.tools.cli", "explain", NAME, "--json", "--prompt",
             str(tmp_path / "prompt"), *more], capture_output=True, text=True, timeout=60)
        return json.loads(done.stdout)

    assert explain(prompt(12))["reason"] == "present"
    longer = explain(prompt(12)[:992] + prompt(14))
    assert (longer["found"], longer["missing"]) == (31, 31)
    assert explain(prompt(13))["missing"] == 0
    assert explain(prompt(13), "--salt", "mine")["reason"] == "present"


def test_figures_are_those_of_the_requests(trio):
    before = trio.b.metrics()
    one(trio.a, Request(prompt(11), 2))
    one(trio.b, Request(prompt(11), 2))
    now = trio.b.metrics()

    def grown(name: str) -> float:
        return now.get(name, 0.0) - before.get(name, 0.0)

    assert grown("vllm:external_prefix_cache_hits_total") == 992
    assert grown("vllm:kvshm_asked_tokens_total") == 1000
    assert grown("vllm:kvshm_memory_tokens_total") == 992
    assert grown("vllm:kvshm_loaded_blocks_total") == 31
    assert grown("vllm:kvshm_load_bytes_total") == 31 * 65536
    assert grown("vllm:kvshm_failed_blocks_total") == 0
    assert "1000 tokens asked, 0 local, 992 memory, 0 disk, 8 computed; load " in trio.b.log()
