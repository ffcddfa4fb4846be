# SPDX-License-Identifier: Apache-2.0
"""Random requests with shared prefixes on two engines, tiny pools and a small arena; preemptions,
aborts, failed and late copies, resets: every output is that of a run without a cache, every block
that can be seen has the right bytes, and at the end nothing is held."""
from __future__ import annotations

import os
import random

import pytest
from support.mock_engine import BLOCK
from support.mock_model import Model
from support.mock_pool import lora
from support.mock_truth import arena_size

SEED = int(os.environ.get("KVSHM_TEST_SEED", "0")) or 1

KINDS = {
    "one group": {},
    "asynchronous": {"load": "async"},
    "two ranks": {"ranks": 2, "load": "async"},
    "a window": {"windows": (None, 3 * BLOCK)},
    "only a window": {"windows": (3 * BLOCK,)},
    "steps in flight": {"depth": 2, "late": 1},
    "speculation": {"lookahead": 2, "load": "async"},
}


class Run:
    def __init__(self, engine, script, kind, seed):
        self.chance = random.Random(f"{kind}-{seed}")
        self.script, kind = script, dict(KINDS[kind])
        windows = kind.pop("windows", (None,))
        self.model = Model(windows, layers=1, ranks=kind.pop("ranks", 1))
        options = {"size": arena_size(1), "load": kind.pop("load", "auto")}
        self.engines = [engine(model=self.model, options=options, budget=self.chance.choice(budget),
                               blocks=28 * len(windows) + 1, most_running=3, cached=cached, **kind)
                        for budget, cached in (((20, 40), True), ((9, 64), False))]
        self.later = options["load"] == "async" or windows != (None,)
        self.prefixes = [self.tokens(BLOCK * self.chance.randrange(1, 9)) for _ in range(5)]
        self.requests = []
        self.expected = {}
        # A failed synchronous load may be shared through the engine's own prefix cache by a
        # request that is not computed in the same step again: vLLM's own gap, not looked at here.
        rate = 0.05 if self.later else 0
        script.bad_loads = lambda rank, job: [i for i in range(99) if self.chance.random() < rate]
        script.bad_saves = lambda rank, job: self.chance.random() < 0.03

    def tokens(self, n):
        return [self.chance.randrange(1000) for _ in range(n)]

    def truth(self, request):
        key = (tuple(request.all_token_ids[:request.num_prompt_tokens]), request.adapter)
        known = self.expected.get(key, [])
        if len(known) < request.max_tokens:
            known = self.expected[key] = self.model.generate(key[0], request.max_tokens, key[1])
        return known

    def add(self):
        chance = self.chance
        prompt = chance.choice(self.prefixes) + self.tokens(chance.choice((0, 1, 3, 9)))
        more = chance.choice(({}, {}, {}, {"salt": "s"}, {"lora": lora(1)}))
        one = chance.choice(self.engines)
        self.requests.append((one, one.add(prompt, chance.choice((1, 2, 9, 20)), **more)))

    def act(self):
        what = self.chance.random()
        if what < 0.25:
            self.add()
        elif what < 0.30 and self.requests:
            one, request = self.chance.choice(self.requests)
            one.abort(request)
        elif what < 0.33:
            self.script.hold_loads = self.later and not self.script.hold_loads
        elif what < 0.36:
            self.script.hold_saves = not self.script.hold_saves
        elif what < 0.42:
            self.script.release_loads(self.chance.randrange(3))
        elif what < 0.46:
            self.script.release_saves(self.chance.randrange(self.model.ranks))
        elif what < 0.462:
            self.chance.choice(self.engines).reset_prefix_cache()
        else:
            self.chance.choice(self.engines).step()

    def end(self):
        self.script.hold_loads = self.script.hold_saves = False
        self.script.release_loads()
        self.script.release_saves()
        for one in self.engines:
            one.drain()


@pytest.mark.parametrize("kind", KINDS)
def test_random_requests(engine, truth, script, kind, request):
    rounds = 200 if request.config.getoption("--full-scenarios") else 3
    for seed in range(SEED, SEED + rounds):
        script.instances.clear()
        run = Run(engine, script, kind, seed)
        look = truth(run.engines[0])
        for number in range(400):
            run.act()
            if number % 100 == 99:
                for _, one in run.requests[-8:]:
                    look.visible(one)  # compares the bytes
        run.end()
        for one, asked in run.requests:
            expected = run.truth(asked)
            assert asked.output == expected[:len(asked.output)], f"seed {seed}: {asked.request_id}"
            assert asked.status == "finished"
            look.visible(asked)
        for one in run.engines:
            side = one.connector._scheduler
            assert not (side.states or side.loading or side.saving or one.requests), f"seed {seed}"
            assert len(one.manager.free) == one.manager.total, f"seed {seed}: a block leaked"
        assert look.held() == 0 and look.arena.is_valid() == [], f"seed {seed}"
        assert sum(one.stats.get("loaded_blocks", 0) for one in run.engines) > 0
        for one in run.engines:
            one.shutdown()
        look.close()
