# SPDX-License-Identifier: Apache-2.0
"""A model with several KV cache groups: sliding-window layers and full ones."""
from __future__ import annotations

import os
import random

import kvshm
from kvshm.tools.vllm.client import Request, close_all
from kvshm.tools.vllm.options import kvshm_connector

NAME = f"test-hybrid-{os.getpid()}"


def test_window_groups_load_only_what_lies_in_the_window(new_engine):
    some = random.Random(1)
    tokens = [some.randrange(2048) for _ in range(1000)]
    longer = tokens[:700] + [some.randrange(2048) for _ in range(300)]
    connector = kvshm_connector({"name": NAME, "size": "128MiB"})
    a = new_engine("tiny-gemma3", label="a", wait=False, connector=connector)
    b = new_engine("tiny-gemma3", label="b", wait=False, connector=connector)
    plain = new_engine("tiny-gemma3", label="plain", wait=False)
    try:
        for engine in (a, b, plain):
            engine.ready()
        assert a.call("reach:kv_groups") > 1
        requests = [Request(tokens, 16), Request(longer, 16)]
        first, = a.generate(requests[:1])
        assert first.num_cached_tokens == 0
        second, branch = b.generate(requests)
        right = plain.generate(requests)
        (warm,) = plain.generate(requests[:1])  # as many rows as the second's
        assert second.num_cached_tokens == warm.num_cached_tokens == 992
        assert [first.tokens, branch.tokens] == [one.tokens for one in right]
        assert second.tokens == warm.tokens
        loaded = b.metrics()["vllm:kvshm_loaded_blocks_total"]
        groups = b.call("reach:kv_groups")
        assert 31 < loaded < 31 * groups  # the full group's, and windows of the others
        assert b.call("faults:broken") == []
        b.reset_prefix_cache()
        b.call("faults:zero_loads", True)
        (wrong,) = b.generate([Request(longer, 16)])
        assert wrong.num_cached_tokens == 992
        assert wrong.tokens != right[1].tokens  # so what was loaded is what it goes by
        b.step(2)
        assert b.call("faults:holds")["held"] == 0
    finally:
        close_all((a, b, plain))
        kvshm.remove(NAME, force=True)
