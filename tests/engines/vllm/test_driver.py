# SPDX-License-Identifier: Apache-2.0
"""The engine process that the tests of the connector stand on, without a connector."""
from __future__ import annotations

import random
import time

import pytest
from kvshm.tools.vllm.client import Engine, EngineError, Lora, Request
from kvshm.tools.vllm.group import members


def prompt(seed: int, tokens: int) -> list[int]:
    some = random.Random(seed)
    return [some.randrange(2048) for _ in range(tokens)]


@pytest.fixture(scope="module")
def engine(new_engine) -> Engine:
    return new_engine(enable_lora=True, max_num_batched_tokens=256)


def test_greedy_tokens_are_lively_and_repeat_without_the_cache(engine):
    (first,) = engine.generate([Request(prompt(1, 1000))])
    assert first.num_cached_tokens == 0 and first.finish_reason == "length"
    assert len(first.tokens) == 16 and len(set(first.tokens)) >= 10
    (again,) = engine.generate([Request(prompt(1, 1000))])
    assert again.num_cached_tokens == 992  # it need not answer the same: a split changes last bits
    assert engine.reset_prefix_cache()
    (fresh,) = engine.generate([Request(prompt(1, 1000))])
    assert fresh.num_cached_tokens == 0 and fresh.tokens == first.tokens
    (other,) = engine.generate([Request(prompt(2, 1000))])
    assert other.tokens != first.tokens


def test_the_time_to_the_first_token_is_that_of_the_prefill(engine):
    long, short = engine.generate([Request(prompt(3, 3000), 4), Request(prompt(4, 100), 4)])
    assert 0 < short.ttft_ms < long.ttft_ms < long.total_ms


def test_progress_is_told_chunk_by_chunk(engine):
    heard: list[int] = []
    engine.on_progress = lambda request, position: heard.append(position)
    try:
        engine.generate([Request(prompt(5, 1000), 2)])
    finally:
        engine.on_progress = None
    assert heard == [256, 512, 768, 1000]


def test_a_salt_and_an_adapter_keep_their_own_cache(engine, model):
    tokens = prompt(6, 320)
    plain, salted, adapted = engine.generate([
        Request(tokens), Request(tokens, cache_salt="x"),
        Request(tokens, lora=Lora("a", str(model("lora-a"))))])
    assert (salted.num_cached_tokens, adapted.num_cached_tokens) == (0, 0)
    assert plain.tokens == salted.tokens != adapted.tokens
    (other,) = engine.generate([Request(tokens, lora=Lora("b", str(model("lora-b"))))])
    assert other.tokens not in (plain.tokens, adapted.tokens)


def test_an_abort_in_mid_prefill_leaves_nothing_in_flight(engine):
    name = engine.add(Request(prompt(7, 1000)))
    step = engine.step(2)
    assert step.computed == {name: 512} and step.open == {name: []}
    engine.abort(name)
    step = engine.step()
    assert not step.open and not step.finished
    assert engine.metrics()["vllm:num_requests_running"] == 0
    (after,) = engine.generate([Request(prompt(7, 1000), 2)])
    assert after.num_cached_tokens == 512


def test_text_becomes_one_token_a_byte(engine):
    assert engine.tokenize("Zürich") == list("Zürich".encode())


def test_a_function_runs_in_the_engines_process(engine):
    assert engine.call("reach:block_size") == 32
    assert engine.call("reach:echo", 1, two=2) == [[1], {"two": 2}]
    with pytest.raises(EngineError, match="KeyError: 'on purpose'"):
        engine.call("reach:fail")
    with pytest.raises(EngineError, match="no answer to call within 0.2 s"):
        engine.call("reach:sleep", 1.0, limit=0.2)
    assert engine.call("reach:block_size") == 32  # it goes on


def test_an_engine_that_cannot_start_says_why(full_only, new_engine):
    with pytest.raises(EngineError, match="block_size|block size"):
        new_engine(block_size=33)


def test_a_kill_in_mid_request_leaves_no_process(full_only, new_engine):
    """The engine as `vllm serve` runs it: a front end, an engine core, a worker."""
    engine = new_engine(multiprocessing=True)
    assert len(members(engine.pid)) > 1
    begun = engine.begin([Request(prompt(8, 3000), 500)])
    time.sleep(0.2)
    assert not begun.done()
    engine.kill()
    assert not members(engine.pid)
    with pytest.raises(EngineError, match="was killed by signal 9"):
        engine.answers(begun)
    with pytest.raises(EngineError, match="was killed by signal 9"):
        engine.metrics()
    folder = engine.log_path.parent
    engine.close()
    assert not folder.exists()


def test_the_second_kv_group_of_a_hybrid_model_is_lively(full_only, new_engine):
    engine = new_engine("tiny-gemma3")
    answers = engine.generate([Request(prompt(i, 300), 24) for i in range(3)])
    assert all(len(set(one.tokens)) >= 8 for one in answers)
    assert engine.call("reach:kv_groups") > 1
