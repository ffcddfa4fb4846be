# SPDX-License-Identifier: Apache-2.0
"""The time to the first token of a long prompt that another engine has computed, and what vLLM's
own metrics say of it."""
from __future__ import annotations

from kvshm.tools.vllm.client import Engine, Request
from kvshm.tools.vllm.options import kvshm_connector
from support import PREFIX

from .watching import one, prompt, watch

NAME = f"{PREFIX}first"
# One has as many tokens as are left of the long prompt: a shape's first use compiles its kernels.
WARM_UP = [Request(prompt(0, 100), 4), Request(prompt(2, 3000 - 93 * 32), 4)]
LONG = Request(prompt(1, 3000), 16)
BLOCKS = 93  # of 32 tokens in 3000
BLOCK = 8 * 8 * 32 * 128 * 2  # bytes: layers, KV heads, tokens, K and V, bfloat16


def grown(engine: Engine, before: dict[str, float]) -> dict[str, float]:
    """By how much each counter has grown."""
    return {name.removesuffix("_total"): value - before.get(name, 0.0)
            for name, value in engine.metrics().items()}


def test_the_first_token_comes_ten_times_sooner(new_engine, record_property):
    connector = kvshm_connector({"name": NAME, "size": "256MiB"})
    a, b = (new_engine("llama-109m", label=label, wait=False, connector=connector)
            for label in "ab")
    for engine in (a, b):
        engine.ready()
        engine.generate(WARM_UP)
    with watch(NAME) as seen:
        before_a, before_b = a.metrics(), b.metrics()
        cold = one(a, LONG)
        warm = one(b, LONG)
        assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, 32 * BLOCKS)
        assert len(set(cold.tokens)) >= 8
        for name, answer in (("cold", cold), ("warm", warm)):
            record_property(f"{name}_first_token_ms", round(answer.ttft_ms, 1))
        print(f"first token: cold {cold.ttft_ms:.0f} ms, warm {warm.ttft_ms:.0f} ms")
        assert cold.ttft_ms >= 10 * warm.ttft_ms, (cold.ttft_ms, warm.ttft_ms)

        stored, loaded = grown(a, before_a), grown(b, before_b)
        assert warm.tokens == one(a, LONG).tokens  # from its own cache: the same split
        source = "vllm:prompt_tokens_cached_by_source_total{source=host}"
        assert (stored[source], loaded[source]) == (0, 32 * BLOCKS)
        expected = {
            "vllm:external_prefix_cache_queries": (3000, 3000),
            "vllm:external_prefix_cache_hits": (0, 32 * BLOCKS),
            "vllm:kvshm_lookups": (1, 1),
            "vllm:kvshm_asked_tokens": (3000, 3000),
            "vllm:kvshm_local_tokens": (0, 0),
            "vllm:kvshm_memory_tokens": (0, 32 * BLOCKS),
            "vllm:kvshm_loaded_blocks": (0, BLOCKS),
            "vllm:kvshm_load_bytes": (0, BLOCKS * BLOCK),
            # The answer fills one more: 3015 tokens have KV.
            "vllm:kvshm_saved_blocks": (BLOCKS + 1, 0),
            "vllm:kvshm_save_bytes": ((BLOCKS + 1) * BLOCK, 0),
            "vllm:kvshm_failed_blocks": (0, 0),
            "vllm:kvshm_failed_saves": (0, 0),
            "vllm:kvshm_refused_blocks": (0, 0),
        }
        found = {name: (stored.get(name), loaded.get(name)) for name in expected}
        assert found == expected
        assert loaded["vllm:kvshm_load_seconds"] > 0 and stored["vllm:kvshm_save_seconds"] > 0
        assert seen.in_use() == (0, 0) and seen.is_clean()
