# SPDX-License-Identifier: Apache-2.0
"""Too little KV memory for what runs: requests are preempted, and resume from what was stored."""
from __future__ import annotations

import os
import random

import kvshm
import pytest
from kvshm.tools.vllm.client import Request
from kvshm.tools.vllm.options import kvshm_connector

NAME = f"test-preempt-{os.getpid()}"


@pytest.mark.parametrize("load", ["sync", "async"])
def test_preempted_requests_resume_with_the_bytes_they_had(new_engine, load):
    """8 requests of 480 + 160 tokens in 90 blocks of 32: the sum is 160. The checksum of each block
    at its save is its checksum after each load."""
    engine = new_engine(max_num_seqs=8, num_gpu_blocks=90, max_model_len=1024, label=load,
                        connector=kvshm_connector({"name": NAME, "size": "64MiB", "load": load}))
    try:
        some = random.Random(1)
        requests = [Request([some.randrange(2048) for _ in range(480)], 160) for _ in range(8)]
        engine.generate([Request([1] * 40, 1)])  # attached
        engine.call("faults:watch_bytes")
        answers = engine.generate(requests, together=True)
        assert [answer.finish_reason for answer in answers] == ["length"] * 8
        assert engine.metrics()["vllm:num_preemptions_total"] > 0
        seen = engine.call("faults:watched")
        assert seen["wrong"] == [] and seen["checked"] > 0
        assert engine.call("faults:broken") == []
        engine.step(2)
        holds = engine.call("faults:holds")
        assert holds == {"held": 0, "filling": 0, "loading": 0, "saving": 0, "states": 0}
    finally:
        engine.close()
        kvshm.remove(NAME, force=True)
