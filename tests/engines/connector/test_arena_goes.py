# SPDX-License-Identifier: Apache-2.0
"""The arena's contents (S75) or the arena itself go away while engines work with it."""
from __future__ import annotations

import gc
import sys

import kvshm
import pytest
from support.cli import kvshm_cli
from support.mock_engine import BLOCK
from support.mock_model import Model

SIZE = 16 * BLOCK


def test_s75_reset_while_stores_and_loads_are_under_way(engine, truth, prompt, script, new_name):
    """Nothing from before is found any more, by any engine, also not what was under way."""
    old, kept, fresh = prompt(SIZE + 1, 1), prompt(SIZE + 1, 2), prompt(SIZE + 1, 3)
    a = engine(options={"load": "async"}, cached=False)
    b = engine(cached=False)
    other = engine(cached=False, options={"namespace": "other", "name": new_name()})
    first = b.run(old, 1)
    other.run(kept, 1)
    script.hold_loads = script.hold_saves = True
    loading = a.add(old, 6)  # in the middle of a load
    storing = a.add(fresh, 6)  # in the middle of a save
    a.step()
    look = truth(b)
    assert a.connector._scheduler.loading and a.connector._scheduler.saving
    waiting = b.add(old, 3)
    assert b.connector.get_num_new_matched_tokens(waiting, 0)[0] == SIZE  # held
    assert a.reset_prefix_cache()
    assert look.arena.epoch == 1
    script.hold_loads = script.hold_saves = False
    script.release_loads()
    script.release_saves()
    a.drain()
    b.drain()
    for one in (loading, waiting, storing):
        length = one.num_prompt_tokens
        assert one.output == a.model.generate(one.all_token_ids[:length], one.max_tokens)
    assert waiting.external == 0, "what was held of the old epoch was loaded"
    # By the old keys nothing that could be found again is left of what was not held.
    assert look.arena.info() and look.visible(first)[0][:16] == list(range(16))  # b stored it anew
    assert look.visible(storing) == [[]], "begun before the reset, found after it"
    for tokens, expected in ((fresh, 0), (old, SIZE)):
        again = engine(cached=False).run(tokens, 1)
        assert again.external == expected
    assert other.run(kept, 1).external == SIZE, "another namespace lost its blocks"
    assert look.held() == 0


def test_s75_another_engine_resets(engine, prompt):
    a, b = engine(cached=False), engine(cached=False)
    tokens = prompt(SIZE + 1)
    a.run(tokens, 1)
    running = b.add(tokens, 20)
    b.step()
    assert running.external == SIZE
    assert a.reset_prefix_cache()
    stored = b.stats["saved_blocks"] if "saved_blocks" in b.stats else 0
    b.drain()
    # It began under the old epoch: its KV may be of other weights. Nothing of it is kept.
    assert b.stats.get("saved_blocks", 0) == stored
    assert b.run(tokens, 1).external == 0
    assert a.run(tokens, 1).external == SIZE, "the new epoch is shared"


def test_reset_says_so_when_it_cannot(engine, monkeypatch):
    a = engine()

    def broken() -> None:
        raise kvshm.TimedOut("no")

    monkeypatch.setattr(a.connector._scheduler.host, "reset", broken)
    assert a.reset_prefix_cache() is False


@pytest.fixture
def soon(module, monkeypatch):
    """An arena that went away is looked for again at once."""
    monkeypatch.setattr(sys.modules[type_module(module)], "RETRY", 0.0)


def type_module(module):
    return module.SchedulerSide.__module__.replace("scheduler", "host")


@pytest.mark.parametrize("load", ["sync", "async"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_arena_is_removed_and_made_anew(engine, prompt, script, soon, load, ranks):
    """kvshm rm --force in the middle of loads, saves and look-ups: no request fails."""
    model = Model(ranks=ranks)
    a = engine(model=model, options={"load": load}, cached=False, blocks=200)
    prompts = [prompt(SIZE + 1, seed) for seed in range(5)]
    for tokens in prompts[:3]:
        a.run(tokens, 1)
    name = a.connector._scheduler.host.arena.name
    for number in range(3):
        script.hold_loads = script.hold_saves = True
        made = [a.add(tokens, 8) for tokens in prompts]
        a.step()
        held = a.add(prompts[1], 3)
        a.connector.get_num_new_matched_tokens(held, 0)
        assert kvshm_cli("rm", "--force", name).code == 0
        script.hold_loads = script.hold_saves = False
        if number != 1:
            script.release_loads()
            script.release_saves()
        for _ in range(3):
            a.step()
        script.release_loads()
        script.release_saves()
        a.drain()
        for one in (*made, held):
            expected = model.generate(one.all_token_ids[:SIZE + 1], one.max_tokens)
            assert one.output == expected
        assert len(a.manager.free) == a.manager.total
        gc.collect()
        # A new arena of that name, empty at first, is in use.
        a.run(prompts[0], 1)
        again = a.run(prompts[0], 1)
        assert again.external == SIZE
        assert a.connector._scheduler.host.arena.name == name


def test_a_rank_that_cannot_attach_at_first(engine, prompt, module, monkeypatch):
    """Its loads fail, so that the engine computes; later it is there."""
    model = Model(ranks=2)
    tokens = prompt(SIZE + 1)
    engine(model=model).run(tokens, 1)
    b = engine(model=model, cached=False)
    worker = sys.modules[module.WorkerSide.__module__]
    monkeypatch.setattr(worker, "RETRY", 0.0, raising=False)
    real = kvshm.Arena.attach
    fails = [1]

    class Once:
        @staticmethod
        def attach(*args, **options):
            if fails:
                fails.pop()
                raise kvshm.TimedOut("not now")
            return real(*args, **options)

    monkeypatch.setattr(worker.kvshm, "Arena", Once)
    one = b.run(tokens, 2)
    assert one.output == model.generate(tokens, 2)
    assert b.stats["failed_blocks"] == 16
    two = b.run(tokens, 2)
    assert two.output == model.generate(tokens, 2) and two.external == SIZE
    assert b.stats["loaded_blocks"] == 16
