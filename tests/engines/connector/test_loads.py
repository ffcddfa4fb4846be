# SPDX-License-Identifier: Apache-2.0
"""Loads that fail (S74) and requests that are cancelled in every state of one (S73)."""
from __future__ import annotations

import random
import sys
from types import SimpleNamespace as NS

import pytest
from support.mock_engine import BLOCK
from support.mock_model import Model

SIZE = 16 * BLOCK
FAILED = [(0,), (7,), (15,), None, (3, 4, 11)]


@pytest.mark.parametrize("load", ["sync", "async"])
@pytest.mark.parametrize("bad", FAILED, ids=str)
@pytest.mark.parametrize("ranks", [1, 2])
def test_s74_the_failed_blocks_are_computed(engine, truth, prompt, script, load, bad, ranks):
    """The exact set is told, what lies before stays, the output is that without a cache."""
    model = Model(ranks=ranks)
    tokens = prompt(SIZE + 3)
    engine(model=model).run(tokens, 3)
    b = engine(model=model, options={"load": load})
    script.bad_loads = lambda rank, job: bad if rank == ranks - 1 else ()
    tables: dict[str, list[int]] = {}  # at the first step
    b.before_metadata = lambda output: [
        tables.setdefault(name, list(b.manager.ids(name)[0])) for name in b.requests]
    one = b.run(tokens, 3)
    assert one.external == SIZE and one.output == model.generate(tokens, 3)
    first = 0 if bad is None else bad[0]
    ((requests, blocks),) = b.failures
    assert (requests, blocks) == (set(), set(tables[one.request_id][first:16]))
    assert b.stats["loaded_blocks"] == first and b.stats["failed_blocks"] == 16 - first
    assert b.stats["memory_tokens"] == first * BLOCK, "a failed block is no hit"
    assert b.received == ([one.request_id] if load == "async" else [])
    assert truth(b).visible(one) == [list(range(17))]


def test_s74_random_failures(engine, truth, prompt, script):
    """Many requests, each with failures of its own, sync and async."""
    chance = random.Random(74)
    a = engine()
    prompts = [prompt(SIZE, seed) for seed in range(6)]
    for tokens in prompts:
        a.run(tokens, 1)
    look = truth(a)
    script.bad_loads = lambda rank, job: [i for i in range(16) if chance.random() < 0.1]
    for load in ("sync", "async"):
        b = engine(options={"load": load}, cached=False, blocks=200)
        made = [b.add([*prompts[n % 6], n], 4) for n in range(24)]
        b.drain()
        for one in made:
            assert one.output == b.model.generate(one.all_token_ids[:SIZE + 1], 4)
            look.visible(one)
        assert len(b.failures) > 1
    assert look.held() == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_s74_nothing_computed_upon_a_failed_load_is_published(engine, truth, prompt, script, depth):
    """Not by the step of the failure, nor by steps that were scheduled before it was known."""
    model = Model()
    tokens = prompt(SIZE + 12 * BLOCK)
    engine().run(tokens[:SIZE + 1], 1)
    b = engine(depth=depth, budget=3 * BLOCK)
    look = truth(b)
    script.bad_loads = lambda rank, job: (2,)
    one = b.add(tokens, 12)
    while b.requests:
        b.step()
        look.visible(one)  # compares the bytes
    b.drain()
    assert one.external == SIZE and one.output == model.generate(tokens, 12)
    # Of what ran at the failure nothing is kept, as others may have shared its blocks by vLLM's own
    # cache; of the next request all is.
    assert look.visible(one)[0] == list(range(16))
    two = b.add(tokens, 12)
    while b.requests:
        b.step()
    b.drain()
    assert look.visible(two)[0][:16 + 12 + 2] == list(range(16 + 12 + 2))
    assert b.stats["failed_saves"] >= depth


def test_a_second_load_is_not_tried(engine, prompt, script):
    """After a failure the request is computed: no endless look-up, load, failure."""
    tokens = prompt(SIZE + 1)
    engine().run(tokens, 1)
    b = engine(options={"load": "async"})
    script.bad_loads = lambda rank, job: None
    one = b.run(tokens, 1)
    assert one.output == b.model.generate(tokens, 1)
    assert b.stats["failed_blocks"] == 16 and len(b.failures) == 1


@pytest.mark.parametrize(("windows", "bad"), [((None, 3 * BLOCK), 17), ((3 * BLOCK,), 1)])
def test_where_blocks_are_no_names_it_fails_by_request(engine, truth, prompt, script, windows, bad):
    """Several groups; or a window, before whose blocks there is nothing to go on from."""
    model = Model(windows)
    tokens = prompt(SIZE + 1)
    engine(model=model).run(tokens, 2)
    b = engine(model=model)
    script.bad_loads = lambda rank, job: (bad,)
    one = b.run(tokens, 2)
    assert b.failures == [({one.request_id}, set())]
    assert one.external == SIZE and one.output == model.generate(tokens, 2)
    assert b.stats["memory_tokens"] == 0 and b.stats["failed_blocks"] == 2
    assert truth(b).visible(one)[0] == list(range(16))


@pytest.mark.parametrize("where", ["all of it", "a number", "the state"])
def test_a_promise_that_cannot_be_kept(engine, truth, prompt, where, monkeypatch):
    """An error after the engine was told of a hit: it is told of a failure, by its rules."""
    tokens = prompt(SIZE + 1)
    engine().run(tokens, 1)
    for load in ("sync", "async"):
        b = engine(options={"load": load})
        side = b.connector._scheduler

        def broken(*args, **kwargs):
            raise RuntimeError("a bug")

        if where == "all of it":
            monkeypatch.setattr(side, "_load", broken)
        elif where == "a number":
            monkeypatch.setattr(side, "_job", iter_jobs(side, broken))
        else:
            real = side.matched

            def forget(request, local):
                found = real(request, local)
                side.finish(request.request_id)
                monkeypatch.setattr(side, "matched", real)
                return found

            monkeypatch.setattr(side, "matched", forget)
        one = b.run(tokens, 2)
        assert one.external == SIZE and one.output == b.model.generate(tokens, 2)
        assert len(b.failures) == 1
        assert not side.states and not side.loading


def iter_jobs(side, broken):
    """The first number of a job cannot be had."""
    real, tries = side._job, []

    def job():
        tries.append(1)
        return broken() if len(tries) == 1 else real()
    return job


# ---- S73 ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("state", ["queued", "looked up", "loading", "done", "reported", "running"])
@pytest.mark.parametrize("load", ["sync", "async"])
def test_s73_cancel_in_every_state(engine, truth, prompt, script, load, state):
    tokens = prompt(SIZE + 1)
    engine().run(tokens, 1)
    b = engine(options={"load": load}, blocks=30)
    look = truth(b)
    script.hold_loads = True
    one = b.add(tokens, 9)
    if state == "looked up":
        assert b.connector.get_num_new_matched_tokens(one, 0)[0] == SIZE
        assert look.held() == 16
    elif state != "queued":
        b.step()
        if load == "async":
            assert one.status == "remote" and look.held() == 16
            if state != "loading":
                script.release_loads()
            if state in ("reported", "running"):
                b.step()
                assert one.request_id in b._recved
            if state == "running":
                b.step()
                assert one.status == "running"
    b.abort(one)
    if load == "async" and state == "loading":
        b.step()
        # The blocks are the load's until it has ended: nobody else gets them.
        assert len(b.manager.free) == b.manager.total - 16 and look.held() == 16
        script.release_loads()
    b.drain()
    assert len(b.manager.free) == b.manager.total, "a block of the engine leaked"
    loaded = load == "async" and state in ("loading", "done", "reported", "running")
    assert b.received == ([one.request_id] if loaded else [])
    assert look.held() == 0
    side = b.connector._scheduler
    assert not (side.states or side.loading or side.saving)
    script.hold_loads = False
    again = b.run(tokens, 2, request_id=one.request_id)  # the same name comes again
    assert again.output == b.model.generate(tokens, 2)


def test_s73_completions_in_every_order(engine, truth, prompt, script):
    """Eight loads end in a random order, half of their requests are cancelled meanwhile."""
    chance = random.Random(73)
    prompts = [prompt(SIZE + 1, seed) for seed in range(8)]
    a = engine(blocks=200)
    for tokens in prompts:
        a.run(tokens, 1)
    for _ in range(20):
        b = engine(options={"load": "async"}, blocks=200)
        script.hold_loads, script.instances = True, script.instances[-1:]
        made = [b.add(tokens, 2) for tokens in prompts]
        b.step()
        (transfers,) = [one for one in script.instances if one._held]
        assert len(transfers._held) == 8
        todo = [("end", None)] * 8 + [("abort", one) for one in chance.sample(made, 4)]
        chance.shuffle(todo)
        for what, one in todo:
            if what == "abort":
                b.abort(one)
            else:
                chance.shuffle(transfers._held)
                transfers.end_loads(1)
            if chance.random() < 0.7:
                b.step()
        b.drain()
        assert len(b.received) == len(set(b.received)) == 8
        assert len(b.manager.free) == b.manager.total
        for one in made:
            expected = b.model.generate(one.all_token_ids[:SIZE + 1], 2)
            assert one.output == expected[:len(one.output)]
    assert truth(a).held() == 0


def test_s73_reports_twice_late_and_of_nobody(engine, truth, module, prompt):
    a = engine()
    tokens = prompt(SIZE + 1)
    a.run(tokens, 1)
    b = engine()
    metas = []
    real = b.connector.update_connector_output

    def twice(output):
        metas.append(output.kv_connector_worker_meta)
        real(output)
        real(output)

    b.connector.update_connector_output = twice
    one = b.run(tokens, 2)
    assert one.output == b.model.generate(tokens, 2)
    assert b.stats["memory_tokens"] == SIZE and b.stats["loaded_blocks"] == 16
    for meta in metas:
        real(NS(kv_connector_worker_meta=meta))  # late
    side = b.connector._scheduler
    kind = type(next(meta for meta in metas if meta is not None))
    result = type(next(iter(next(meta for meta in metas if meta is not None).results.values())))
    real(NS(kv_connector_worker_meta=kind({10**6: result(1), -1: result(5, 0)})))
    real(NS(kv_connector_worker_meta=None))
    assert not side.loading and not side.saving and side.take_stats() is None
    assert not b.connector._told, "an error was swallowed"
    assert truth(b).held() == 0


def test_a_load_that_ends_while_it_is_asked_about(module):
    """One answer of done() counts: a load that was neither "still" nor "over" was lost for ever."""
    transfers = sys.modules[module.WorkerSide.__module__].HostTransfers(None, {}, 0, 1.0)
    answers = [False, True, True]
    future = NS(done=lambda: answers.pop(0), exception=lambda: None, result=lambda: "result")
    transfers._later = [("job", future)]
    assert transfers.finished() + transfers.finished() == [("job", "result")]


@pytest.mark.parametrize("load", ["sync", "async"])
def test_an_error_nobody_thought_of(engine, prompt, module, monkeypatch, load):
    tokens = prompt(SIZE + 1)
    engine().run(tokens, 1)
    b = engine(options={"load": load})

    def broken(*args):
        raise ZeroDivisionError

    transfers = sys.modules[module.WorkerSide.__module__].HostTransfers
    monkeypatch.setattr(transfers, "_load", broken)
    monkeypatch.setattr(transfers, "_save", broken)
    one = b.run(tokens, 2)
    assert one.output == b.model.generate(tokens, 2)
    assert b.stats["failed_blocks"] == 16


def test_ranks_that_report_in_different_steps(engine, truth, prompt, script):
    """A load is held, and a save goes on, until the last rank has told."""
    model, tokens = Model(ranks=2), prompt(SIZE + 1)
    a = engine(model=model)
    look = truth(a)
    script.hold_saves = True
    one = a.add(tokens, 1)
    a.step()
    for rank in (1, 0):
        assert look.visible(one) == [[]] and a.connector._scheduler.saving
        script.release_saves(rank)
        a.step()
    a.drain()
    assert look.visible(one) == [list(range(16))] and a.stats["failed_saves"] == 0
    script.hold_saves, script.hold_loads = False, True
    b = engine(model=model, options={"load": "async"})
    two = b.add(tokens, 1)
    b.step()
    for transfers in script.instances[-2:]:
        assert look.held() == 16 and two.status == "remote"
        transfers.end_loads(1)
        b.step()
    assert look.held() == 0 and b.received == [two.request_id]
    b.drain()
    assert two.output == model.generate(tokens, 1)
