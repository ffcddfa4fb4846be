# SPDX-License-Identifier: Apache-2.0
"""Looking up: what is offered to the engine, and that what was held is given back (S15, S78)."""
from __future__ import annotations

import gc
import random
from types import SimpleNamespace as NS

import kvshm
import pytest
from support.cli import kvshm_cli
from support.mock_engine import BLOCK, report_of
from support.mock_model import Model
from support.mock_pool import Blocks, lora
from support.mock_truth import arena_size

EMPTY = NS(scheduled_new_reqs=[], num_scheduled_tokens={}, finished_req_ids=set(),
           scheduled_cached_reqs=NS(req_ids=[], new_block_ids=[]),
           kv_connector_block_state=NS(get_block_ids=lambda name: None))


@pytest.mark.parametrize(("load", "later"), [("sync", False), ("async", True)])
def test_semantics_47_one_token_is_left_to_compute(engine, prompt, load, later):
    """A prompt that is all there: n - 1 blocks. A hit shorter than a block: (0, no load)."""
    a, b = engine(), engine(options={"load": load})
    tokens = prompt(5 * BLOCK)
    a.run(tokens, 2)
    assert b.connector.get_num_new_matched_tokens(b.add(tokens), 0) == (4 * BLOCK, later)
    assert b.connector.get_num_new_matched_tokens(b.add(tokens + [1]), 0) == (5 * BLOCK, later)
    for short in (tokens[:1], tokens[:BLOCK - 1], tokens[:BLOCK], [1000, *tokens]):
        assert b.connector.get_num_new_matched_tokens(b.add(short), 0) == (0, False)
    # What the engine has itself is not offered again.
    assert b.connector.get_num_new_matched_tokens(b.add(tokens), 2 * BLOCK) == (2 * BLOCK, later)
    assert b.connector.get_num_new_matched_tokens(b.add(tokens), 4 * BLOCK) == (0, False)
    b.drain()
    assert all(one.output == b.model.generate(one.all_token_ids[:one.num_prompt_tokens], 1)
               for one in b.done.values())


def test_a_repeated_try_keeps_what_it_holds(engine, truth, prompt):
    a, b = engine(), engine()
    look = truth(a)
    tokens = prompt(6 * BLOCK)
    a.run(tokens[:4 * BLOCK], 1)
    waiting = b.add(tokens)
    for _ in range(3):
        assert b.connector.get_num_new_matched_tokens(waiting, 0) == (4 * BLOCK, False)
        assert look.arena.stats().blocks_held == 4
    a.run(tokens, 1)  # more of it appears: the hold grows
    assert b.connector.get_num_new_matched_tokens(waiting, 0) == (5 * BLOCK, False)
    assert look.arena.stats().blocks_held == 5
    assert b.connector.get_num_new_matched_tokens(waiting, BLOCK) == (4 * BLOCK, False)
    assert look.arena.stats().blocks_held == 4
    assert look.arena.evict(look.keys(waiting)[0][1:5]) == 0
    b.abort(waiting)
    assert look.held() == 0
    b.drain()


def test_s15_lookups_of_every_fate(engine, truth, prompt, request):
    """Used wholly, in part, not at all, cancelled, dropped, timed out: no hold is left over."""
    chance = random.Random(15)
    a, b = engine(), engine()
    look = truth(a)
    side = b.connector._scheduler
    prompts = [prompt(6 * BLOCK, seed) for seed in range(4)]
    kinds = [{}, {"salt": "tenant-a"}, {"salt": "tenant-b"}, {"lora": lora(1)}]
    for tokens in prompts:
        for kind in kinds:
            a.run(tokens, 2, **kind)
    ready = a.stats["saved_blocks"]
    tables = [list(range(1, 7))]
    rounds = 10_000 if request.config.getoption("--full-scenarios") else 2_000
    fates = dict.fromkeys(("all", "part", "none", "cancel", "dropped", "late"), 0)
    for number in range(rounds):
        one = b.add(chance.choice(prompts), request_id=f"cmpl-0-{number:08}",
                    **chance.choice(kinds))
        b.waiting.clear()
        del b.requests[one.request_id]
        found, later = b.connector.get_num_new_matched_tokens(one, 0)
        assert (found, later) == (5 * BLOCK, False)
        if number == 7:
            (mine,) = kvshm_cli("stat", "--json", look.arena.name).json["leases"]
            assert (mine["tag"], mine["count"]) == ("00000007", 5)
        fate = chance.choice(list(fates))
        fates[fate] += 1
        if fate in ("all", "part"):
            tokens = found if fate == "all" else BLOCK * chance.randrange(1, 5)
            b.connector.update_state_after_alloc(one, Blocks(tables), tokens)
            (job,) = side.loading.values()
            assert look.arena.stats().blocks_held == job.blocks == tokens // BLOCK
            meta = b.connector.build_connector_meta(EMPTY)
            worker = b.workers[0]
            worker.bind_connector_metadata(meta)
            worker.start_load_kv(None)
            report = report_of(worker, set())
            b.connector.update_connector_output(NS(kv_connector_worker_meta=report.worker_meta))
        elif fate == "none":
            b.connector.update_state_after_alloc(one, Blocks(tables), 0)
        elif fate == "dropped":  # the request is forgotten without a word
            del side.states[one.request_id]
        elif fate == "late":  # the same id comes again
            b.connector.on_new_request(one)
        b.connector.request_finished_all_groups(one, ([],))
    gc.collect()
    assert all(fates.values())
    assert not side.states and not side.loading
    stats = look.arena.stats()
    assert stats.blocks_held == stats.blocks_filling == 0
    assert look.arena.clear() == ready  # every block could be evicted


def test_s78_empty_steps_and_repeated_requests(engine, truth, prompt):
    a = engine()
    look = truth(a)
    for _ in range(300):
        a.step()  # nothing is there to do
    assert not a.stats and look.arena.stats().lookups_total == 0
    tokens = prompt(10 * BLOCK + 1)
    together = [a.add(tokens, 3) for _ in range(4)]
    a.drain()
    expected = a.model.generate(tokens, 3)
    assert [one.output for one in together] == [expected] * 4
    assert a.stats["saved_blocks"] == 10
    single = [a.add([n], 1) for n in range(20)]
    a.drain()
    assert [one.output for one in single] == [a.model.generate([n], 1) for n in range(20)]
    assert a.stats["saved_blocks"] == 10 and a.stats["asked_tokens"] == 4 * len(tokens) + 20
    assert look.visible(together[0]) == [list(range(10))] and look.held() == 0


def test_s78_a_prompt_of_100_000_tokens(engine, truth, prompt):
    """Through both sides, beside the model: 25 000 blocks in one step."""
    n = 100_000
    size = arena_size(30_000)
    a = engine(options={"size": size}, blocks=n // BLOCK + 9, budget=n)
    b = engine(options={"size": size}, blocks=n // BLOCK + 9, budget=n)
    for one in (a, b):
        one._forward = lambda output: {name: 1 for name in output.positions}
    for rank in a.cache.arrays:
        for array in rank.values():
            array[:] = array.reshape(-1).cumsum().reshape(array.shape) + 1
    tokens = prompt(n)
    a.run(tokens, 1)
    assert a.stats["saved_blocks"] == n // BLOCK
    again = b.run(tokens, 1)
    assert again.external == n - BLOCK and b.stats["loaded_blocks"] == n // BLOCK - 1
    assert b.stats["lookup_seconds"] < 0.5
    assert truth(a).held() == 0


def test_windows_all_or_nothing(engine, truth, prompt):
    """Two groups, one with a window: only the window is loaded; without it nothing is."""
    model = Model((None, 3 * BLOCK))
    a, b = engine(model=model), engine(model=model)
    look = truth(a)
    tokens = prompt(10 * BLOCK + 1)
    one = a.run(tokens, 2)
    hit = b.run(tokens, 2)
    assert hit.external == 10 * BLOCK and hit.output == model.generate(tokens, 2)
    assert b.stats["loaded_blocks"] == 10 + 3
    # The last block of the window goes: the boundary before it is taken, with its own window.
    keys = look.keys(one)
    assert look.arena.evict(keys[1][9:10]) == 1
    c = engine(model=model)
    hit = c.run(tokens, 2)
    assert hit.external == 9 * BLOCK and hit.output == model.generate(tokens, 2)
    # Every window is broken: nothing is loaded.
    c.reset_prefix_cache(connector=False)
    assert look.arena.evict(keys[1][0:10:2]) >= 4
    d = engine(model=model, options={"write": False})
    hit = d.run(tokens, 2)
    assert hit.external == 0 and hit.output == model.generate(tokens, 2)
    assert isinstance(look.arena, kvshm.Arena) and look.held() == 0
