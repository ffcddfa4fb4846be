# SPDX-License-Identifier: Apache-2.0
"""S77: four rank processes get one answer, however they hurry, and whatever is evicted."""
from __future__ import annotations

import os
import pickle
import random
import time
from pathlib import Path

import numpy as np
import pytest
from support import Worker
from support.mock_engine import BLOCK, for_rank, kv_cache_config, vllm_config
from support.mock_model import Model
from support.mock_ranks import remote

RANKS = 4
TESTS = str(Path(__file__).resolve().parents[2])

EVICTS = """
import pickle, random, sys, time
import kvshm
arena = kvshm.Arena.attach(sys.argv[1], helper=False)
keys = pickle.load(open(sys.argv[2], "rb"))
chance = random.Random(77)
gone = 0
say("ready")
import select
while not select.select([sys.stdin], [], [], 0)[0]:
    i = chance.randrange(len(keys))
    gone += arena.evict(keys[i:i + 2])
    time.sleep(0.0005)
arena.close()
say(gone)
"""


@pytest.fixture
def start(new_name):
    started = []
    env = {"PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])}

    def run(code, *args):
        started.append(Worker(code, *args, env=env))
        return started[-1]
    yield run
    for one in started:
        one.close()


@pytest.mark.timeout(7200)  # of the full form, 100,000 requests
@pytest.mark.parametrize("load", ["sync", "async"])
def test_s77_one_answer(start, engine, truth, prompt, tmp_path, arena_name, request, load):
    full = request.config.getoption("--full-scenarios")
    model = Model(layers=1, ranks=RANKS)
    options = {"name": arena_name, "load": load}
    a = engine(model=model, options=options, blocks=80, cached=False)
    kv = kv_cache_config(model, 80, BLOCK)
    config = vllm_config(options, BLOCK, RANKS, f"{model.seed}")
    remote(a, start, tmp_path, kv, [for_rank(config, r) for r in range(RANKS)], {2: 0.02})
    chance = random.Random(77)
    prompts = [prompt(6 * BLOCK + 1, seed) for seed in range(8)]
    expected = [model.generate(one, 2) for one in prompts]
    look = truth(a)
    keys = np.concatenate([look.keys(a.run(one, 1))[0][:] for one in prompts])
    path = tmp_path / "keys"
    path.write_bytes(pickle.dumps(keys))
    evicts = start(EVICTS, arena_name, path)
    assert evicts.hear() == "ready"
    end = time.monotonic() + (10**9 if full else 2)
    count = hits = 0
    while time.monotonic() < end and count < 100_000:
        made = [(n, a.add(prompts[n], 2)) for n in chance.choices(range(8), k=4)]
        a.drain()
        for n, one in made:
            assert one.output == expected[n]
            count += 1
            hits += one.external
        a.done.clear()
    evicts.say("stop")
    assert evicts.hear() > 10
    assert count > 40 and 0 < hits < count * 6 * BLOCK
    assert a.failures, "no rank lacked anything"
    if load == "async":
        assert len(a.received) == len(set(a.received)) > 0
    for one in prompts:
        look.visible(a.run(one, 1))  # compares the bytes of all four parts
    assert look.held() == 0
    assert not a.connector._scheduler.loading and not a.connector._scheduler.saving
