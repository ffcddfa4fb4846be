# SPDX-License-Identifier: Apache-2.0
"""vLLM's own OffloadingConnector on an arena: two engine processes, one after the other."""
from __future__ import annotations

import random

import kvshm
import pytest
from kvshm.tools.vllm.client import Answer, Request

TOKENS = 1000  # 31 full blocks of 32: 992


def prompt(seed: int) -> list[int]:
    some = random.Random(seed)
    return [some.randrange(2048) for _ in range(TOKENS)]


def offloading(name: str, **extra: object) -> dict[str, object]:
    """kv_transfer_config of vLLM's connector with our spec."""
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "KvshmOffloadingSpec",
                "spec_module_path": "kvshm.connectors.vllm.offloading",
                "name": name, "size": "64MiB", **extra}}


def ask(engine, *seeds: int) -> list[Answer]:
    return engine.generate([Request(prompt(seed)) for seed in seeds])


@pytest.fixture(scope="module")
def arena():
    name = "test-offloading"
    yield name
    try:
        kvshm.remove(name, force=True)
    except kvshm.ArenaNotFound:
        pass


@pytest.fixture(scope="module")
def plain(new_engine) -> list[Answer]:
    """Without a connector: two cold, and the same from the engine's own cache, as the last bits of
    a prefill go by how it is split."""
    engine = new_engine()
    answers = ask(engine, 1, 2, 1, 2)
    engine.close()
    return answers


@pytest.fixture(scope="module")
def stored(new_engine, arena) -> list[Answer]:
    """By an engine that has ended since. One token is generated behind each prompt, so that the
    steps run in which vLLM hands its last stores over."""
    engine = new_engine(connector=offloading(arena))
    answers = ask(engine, 1, 2)
    engine.step(4)
    assert engine.call("offloaded:settled") == {"requests": 0, "stores": 0, "retired": 0}
    assert engine.call("offloaded:blocks") == {
        "kept": 62, "held": 0, "filling": 0, "broken": 0}
    engine.close()
    return answers


@pytest.fixture(scope="module")
def second(new_engine, arena, stored):
    return new_engine(connector=offloading(arena))


def test_another_process_loads_what_was_stored(plain, stored, second):
    answers = ask(second, 1, 2)
    assert [one.num_cached_tokens for one in stored] == [0, 0]
    assert [one.num_cached_tokens for one in answers] == [992, 992]
    assert [one.num_cached_tokens for one in plain] == [0, 0, 992, 992]
    assert [one.tokens for one in stored + answers] == [one.tokens for one in plain]
    metrics = second.metrics()
    assert metrics["vllm:external_prefix_cache_hits_total"] == 2 * 992


def test_nothing_is_held_afterwards(second):
    second.step(4)
    assert second.call("offloaded:settled") == {"requests": 0, "stores": 0, "retired": 0}
    assert second.call("offloaded:blocks") == {
        "kept": 62, "held": 0, "filling": 0, "broken": 0}


def test_what_a_look_up_found_stays_until_it_is_loaded(second):
    """vLLM's interface cannot say that a block is gone."""
    hit, miss = ["HIT"] * 4, ["MISS"] * 4
    assert second.call("offloaded:life_of_a_hold") == {
        "while stored": miss,  # not pending: a request waits for nobody
        "again": [],
        "looked up": [hit, hit, 0],
        "prepared": [2, 1],
        "finished": [2, 0],
        "loaded": ["HIT", "HIT", "HIT", "MISS"],
        "let go": 3,
        "evicted": miss,
    }


def test_a_store_that_fails_is_nobodys_business_a_load_is(second):
    """vLLM ends the engine with a job that failed; of a store nothing is published, so nothing is
    found. A load must not be told as done: the engine would compute upon bytes that are not there.
    """
    told = second.call("offloaded:jobs_that_fail")
    assert told == {"-1": True, "-2": True, "-3": False, "-4": False}
    assert second.call("offloaded:blocks")["filling"] == 0


def test_the_answers_depend_on_the_loaded_bytes(plain, second):
    assert second.reset_prefix_cache()
    second.call("offloaded:zero_what_is_loaded")
    (wrong,) = ask(second, 1)
    assert wrong.num_cached_tokens == 992
    assert wrong.tokens != plain[2].tokens


def test_a_reset_is_one_for_every_engine(second, arena):
    with kvshm.Arena.attach(arena) as other:
        before = other.epoch
        assert second.reset_prefix_cache(reset_connector=True)
        assert other.epoch == before + 1
    (answer,) = ask(second, 2)
    assert answer.num_cached_tokens == 0


def test_each_group_of_a_hybrid_model_is_loaded(full_only, new_engine):
    """A window group only what lies in the window: vLLM allocates no block for the rest."""
    name = "test-offloading-hybrid"
    try:
        first = new_engine("tiny-gemma3", connector=offloading(name))
        cold, own = ask(first, 1, 1)
        first.step(4)
        first.close()
        engine = new_engine("tiny-gemma3", connector=offloading(name))
        warm = ask(engine, 1)
        assert cold.num_cached_tokens == 0
        assert warm[0].num_cached_tokens == own.num_cached_tokens == 992
        assert warm[0].tokens == own.tokens
        engine.step(4)
        assert engine.call("offloaded:settled") == {"requests": 0, "stores": 0, "retired": 0}
        assert engine.call("offloaded:blocks")["held"] == 0
        assert engine.reset_prefix_cache()
        engine.call("offloaded:zero_what_is_loaded")
        assert ask(engine, 1)[0].tokens != own.tokens
    finally:
        kvshm.remove(name, force=True)


def test_what_it_cannot_do_is_refused_at_the_start(second):
    said = second.call("offloaded:refusals")
    assert "2 blocks a chunk" in said["blocks_per_chunk"]
    assert "canonical_layout" in said["canonical_layout"]
    assert "priority" in said["prioritty"]  # the option that was meant
    assert "KvshmConnector keeps adapters apart" in said["lora"]
    assert "0.32 alone" in said["version"] and "0.31.4" in said["version"]
    assert "OffloadingConnector" in said["no engine"]
