# SPDX-License-Identifier: Apache-2.0
"""The short forms of `tools/soak tiers` for vLLM, and of `tools/soak vllm`."""
from __future__ import annotations

import pytest
from kvshm.tools.soaks import main as tiers
from kvshm.tools.vllm import soak


def test_two_engines_over_a_disk_and_a_kill(vllm_python):
    part = tiers.run("vllm", 25, 5, print, workers=2, requests=10, every=15.0)
    assert tiers.holds(part), tiers.table(part)


def test_two_engines_on_an_arena_that_is_too_small(vllm_python, full_only):
    document = soak.soak(20, 1, print)
    assert soak.holds(document), soak.table(document)
    assert document["requests"] == document["compared"] == 20
    assert document["loaded_blocks"] > 0  # how many, the order of two engines decides


@pytest.mark.parametrize("field, wrong", [
    ("failed", 1), ("held", 2), ("filling", 1), ("verify", 1), ("right", 19), ("failed_saves", 1),
    ("evicted_blocks", 0), ("memory_tokens", 0), ("arena_blocks", 40)])
def test_it_says_what_does_not_hold(field, wrong):
    good = {"failed": 0, "held": 0, "filling": 0, "verify": 0, "failed_blocks": 0,
            "failed_saves": 0, "right": 20, "compared": 20, "evicted_blocks": 5,
            "memory_tokens": 64, "arena_blocks": 39, "working_set": 119}
    assert soak.holds(good)
    assert not soak.holds({**good, field: wrong})
