# SPDX-License-Identifier: Apache-2.0
"""Saves: nothing unfinished is seen (S17), nothing foreign is stored (S19), nothing is left out."""
from __future__ import annotations

import pickle
import random

import numpy as np
import pytest
from support.mock_engine import BLOCK
from support.mock_model import Model
from support.mock_truth import arena_size

SIZE = 16 * BLOCK

# A process that looks every block up again and again, and compares what it finds.
READER = """
import pickle, sys
import kvshm, numpy as np
arena = kvshm.Arena.attach(sys.argv[1], helper=False)
keys, contents = pickle.load(open(sys.argv[2], "rb"))
say("ready")
seen = set()
looks = 0
stop = False
import select
while not stop:
    stop = bool(select.select([sys.stdin], [], [], 0)[0])
    for i in range(len(keys)):
        with arena.match(keys[i:i + 1], touch=False) as lease:
            if len(lease):
                seen.add(i)
                for _ in range(2):
                    if bytes(lease.view(0)) != contents[i]:
                        say({"wrong": i})
    looks += 1
say({"looks": looks, "seen": sorted(seen)})
"""


def contents(truth, request):
    """Keys of a request's blocks, and the bytes of each: read when they are known to be right."""
    (keys,) = truth.keys(request)
    assert truth.visible(request) == [list(range(len(keys)))]
    found = []
    for i in range(len(keys)):
        with truth.arena.match(keys[i:i + 1]) as lease:
            found.append(bytes(lease.view(0)))
    return keys[:].copy(), found


def test_s17_readers_in_other_processes(engine, truth, prompt, script, worker, tmp_path, request):
    """Two ranks; their halves of a block come late, in any order, fail, or never come."""
    chance = random.Random(17)
    model = Model(ranks=2)
    a = engine(model=model, cached=False, options={"read": False})
    look = truth(a)
    requests = [a.run(prompt(SIZE + 1, seed), 1) for seed in range(4)]
    keys, expected = [], []
    for one in requests:
        k, e = contents(look, one)
        keys.append(k)
        expected += e
    path = tmp_path / "expected"
    path.write_bytes(pickle.dumps((np.concatenate(keys), expected)))
    reader = worker(READER, look.arena.name, path)
    assert reader.hear() == "ready"
    rounds = 300 if request.config.getoption("--full-scenarios") else 25
    script.hold_saves = True
    for number in range(rounds):
        assert look.arena.clear() >= 0
        b = a if number % 2 else engine(model=model, cached=False, options={"read": False})
        never = chance.random() < 0.3
        script.bad_saves = lambda rank, job: rank == 1 and chance.random() < 0.2
        one = b.add(requests[number % 4].all_token_ids[:SIZE + 1], 1)
        b.step()
        first = chance.randrange(2)
        script.release_saves(first)
        b.step()
        if never:
            assert look.visible(one) == [[]], "one half of a block was published"
        script.release_saves(1 - first)
        b.drain()
        if b is not a:
            b.shutdown()
    reader.say("stop")
    said = reader.hear()
    assert "wrong" not in said, said
    assert said["looks"] > 3 and len(said["seen"]) > 20
    assert look.held() == 0


def test_s17_a_rank_that_never_arrives(engine, truth, prompt, script):
    model = Model(ranks=2)
    a = engine(model=model)
    look = truth(a)
    script.hold_saves = True
    one = a.add(prompt(SIZE + 1), 1)
    for _ in range(5):
        a.step()
        script.release_saves(0)
    assert a.connector.has_pending_push_work()
    assert look.visible(one) == [[]] and look.arena.stats().blocks_filling == 16
    b = engine(model=model, options={"write": False})  # computes instead of waiting
    again = b.run(prompt(SIZE + 1), 2)
    assert again.external == 0 and again.output == model.generate(prompt(SIZE + 1), 2)
    for _, fill in script.instances[1].begun.values():  # the late rank is gone
        fill.abort()
    script.instances[1].begun.clear()
    a.shutdown()
    assert look.visible(one) == [[]] and look.held() == 0


@pytest.mark.parametrize("way", ["preempted", "cancelled"])
@pytest.mark.parametrize("windows", [(None,), (None, 3 * BLOCK)], ids=["one", "two"])
def test_s19_a_save_whose_blocks_are_given_away(engine, truth, prompt, script, way, windows):
    """The copies of the first request's blocks have not run when the engine gives them to others:
    the flush makes them run before a byte of the others is written."""
    model = Model(windows)
    a = engine(model=model, blocks=24 * len(windows), cached=False, options={"read": False})
    look = truth(a)
    script.hold_saves = True
    first = a.add(prompt(SIZE + 1, 1), 20)
    a.step()
    assert len(script.instances[-1].begun) == len(windows) and not script.flushed
    others = [a.add(prompt(SIZE, seed), 4) for seed in range(2, 6)]
    if way == "preempted":
        a.preempt(first)
    else:
        a.abort(first)
    for _ in range(12):
        a.step()
    assert script.flushed, "the engine's blocks were reused without a word"
    script.hold_saves = False
    script.release_saves()
    a.drain()
    for one in (first, *others):
        found = look.visible(one)  # compares the bytes
        assert found[0][:16] == list(range(16)), "flushed saves are complete"
    assert all(one.output == model.generate(one.all_token_ids[:one.num_prompt_tokens], 4)
               for one in others)


@pytest.mark.parametrize("how", [{}, {"depth": 2}, {"depth": 3}, {"lookahead": 3}, {"late": 1},
                                 {"late": 3}, {"budget": 5}, {"budget": 7, "depth": 2}], ids=str)
def test_every_decode_block_is_stored(engine, truth, prompt, how):
    """vLLM's issue 33864: tokens are scheduled before their hashes exist; no block is left out."""
    a = engine(**how)
    late = how.get("late", 0) + how.get("depth", 1) - 1
    for extra in range(BLOCK):
        tokens = prompt(3 * BLOCK + extra, extra)
        one = a.run(tokens, 40)
        computed = one.num_tokens - 1
        sure = (computed - late) // BLOCK
        assert one.output == a.model.generate(tokens, 40)
        (found,) = truth(a).visible(one)
        assert found in (list(range(sure)), list(range(computed // BLOCK)))


def test_an_arena_full_of_held_blocks(engine, truth, prompt):
    """No space: the engine goes on; what could not be stored is tried again while it runs."""
    a = engine(options={"size": arena_size(24)}, blocks=200)
    look = truth(a)
    total = look.arena.info().blocks
    old = a.run(prompt((total - 4) * BLOCK + 1, 1), 1)
    (keys,) = look.keys(old)
    held = look.arena.match(keys[:])
    assert len(held) == total - 4
    tokens = prompt(10 * BLOCK + 1, 2)
    one = a.add(tokens, 12)
    for _ in range(3):
        a.step()
    assert a.stats["refused_blocks"] == 3 * 10 and look.visible(one) == [[]]
    held.release()
    a.drain()
    assert one.output == a.model.generate(tokens, 12)
    assert look.visible(one) == [list(range(13))] and look.held() == 0


def test_a_prompt_that_is_longer_than_the_arena(engine, truth, prompt, monkeypatch):
    """Its beginning is stored: more than the arena has is never asked for at once."""
    from kvshm.connectors.vllm import saves

    monkeypatch.setattr(saves, "AT_ONCE", 1000)  # the smallest arena has as many as it really is
    a = engine(options={"size": arena_size(24)}, blocks=200, budget=10000)
    look = truth(a)
    total = look.arena.info().blocks
    tokens = prompt((total + 8) * BLOCK + 1)
    one = a.run(tokens, 1)
    assert one.output == a.model.generate(tokens, 1)
    (found,) = look.visible(one)
    assert found and look.held() == 0


def test_preemption_stores_and_finds_its_own_blocks(engine, truth, prompt):
    """A pool that is too small: requests are preempted, and come back to what they stored."""
    model = Model()
    a = engine(model=model, blocks=40, most_running=4)
    made = [a.add(prompt(7 * BLOCK, seed), 30) for seed in range(6)]
    a.drain()
    assert sum(one.preemptions for one in made) > 2
    for one in made:
        assert one.output == model.generate(one.all_token_ids[:7 * BLOCK], 30)
        assert truth(a).visible(one) == [list(range((one.num_tokens - 1) // BLOCK))]
    assert a.stats["asked_tokens"] == 6 * 7 * BLOCK, "a request is counted once"


def test_failed_saves_are_tried_again_and_given_up(engine, truth, prompt, script):
    a = engine()
    look = truth(a)
    times = []
    script.bad_saves = lambda rank, job: times.append(job) or len(times) <= 2
    one = a.run(prompt(SIZE + 1), 10)
    assert a.stats["failed_saves"] == 2 and look.visible(one)[0][:16] == list(range(16))
    script.bad_saves = lambda rank, job: True
    before = a.stats["failed_saves"]
    two = a.run(prompt(SIZE + 1, 1), 30)
    assert 1 < a.stats["failed_saves"] - before <= 5
    assert two.output == a.model.generate(prompt(SIZE + 1, 1), 30)
    assert look.visible(two) == [[]] and look.held() == 0
