# SPDX-License-Identifier: Apache-2.0
"""Blocks that are on disk alone: brought into the arena before the engine is told of them. The disk
parts of S74 and S77; what a restart, a reset and an arena that goes leave of them."""
from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import kvshm
import numpy as np
import pytest
from support import Worker, shm_dir
from support.arenas import eventually
from support.mock_engine import BLOCK, for_rank, kv_cache_config, vllm_config
from support.mock_model import Model
from support.mock_ranks import remote
from support.mock_truth import arena_size

BLOCKS = 16
SIZE = BLOCKS * BLOCK
TESTS = str(Path(__file__).resolve().parents[2])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tier"


@pytest.fixture
def tiered(engine, path):
    """An engine as engine() makes it, with a tier; threads move the bytes, which works anywhere."""
    def make(options=None, **more):
        options = {"tier": str(path), "tier_size": "4MiB", "tier_engine": "threads",
                   **(options or {})}
        made = engine(options=options, **more)
        arena = arena_of(made)
        assert eventually(lambda: arena.tier.state == kvshm.TierState.OK)
        return made
    return make


def arena_of(engine):
    return engine.connector._scheduler.host.arena


def keys_of(look, request):
    return np.concatenate([own[:] for own in look.keys(request)])


def written(engine, look, request):
    """All blocks of a request are on disk."""
    arena, keys = arena_of(engine), keys_of(look, request)
    return eventually(lambda: (arena.presence(keys) & kvshm.Presence.G3).all(), 10)


def evicted(engine, look, request):
    """... and now on disk alone; their bytes, as they were."""
    assert written(engine, look, request)
    keys = keys_of(look, request)
    with look.arena.match_scattered(keys) as lease:
        bytes_of = [bytes(lease.view(i)[:]) for i in range(len(keys))]
    look.arena.evict(keys)
    assert (arena_of(engine).presence(keys) == kvshm.Presence.G3).all()
    return bytes_of


def damage(path, content, part=0, parts=1):
    """Turn a byte of one rank's slice of a block over, where it lies in the file."""
    data = path.read_bytes()
    at = data.find(content)
    assert at >= 0, "not in the file"
    at += len(content) * part // parts
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 255]))
        os.fsync(file.fileno())


@pytest.mark.parametrize("load", ["sync", "async"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_on_disk_is_a_hit(tiered, truth, prompt, load, ranks):
    model = Model(ranks=ranks)
    tokens = prompt(SIZE + 3)
    a = tiered(model=model)
    look = truth(a)
    evicted(a, look, a.run(tokens, 1))
    b = tiered(model=model, options={"load": load})
    one = b.run(tokens, 3)
    assert one.external == SIZE and one.output == model.generate(tokens, 3)
    assert b.stats["disk_tokens"] == SIZE and b.stats.get("memory_tokens", 0) == 0
    assert b.stats["disk_blocks"] == BLOCKS and b.stats["disk_seconds"] > 0
    assert b.stats.get("failed_disk_blocks", 0) == b.stats.get("late_disk_loads", 0) == 0
    assert b.stats["saved_blocks"] <= 1, "it is in memory again, and not stored a second time"
    assert look.visible(one)[0][:BLOCKS] == list(range(BLOCKS))
    assert eventually(lambda: look.held() == 0)
    two = tiered(model=model).run(tokens, 3)
    assert two.external == SIZE


@pytest.mark.parametrize("bad", [(0,), (7,), (15,), tuple(range(BLOCKS)), (3, 4, 11)], ids=str)
@pytest.mark.parametrize("load", ["sync", "async"])
def test_s74_damaged_slots(tiered, truth, prompt, path, load, bad):
    """The blocks before the first one that fails are a hit, the others are computed; the output is
    that without a cache, and none of it is an error of the engine's."""
    tokens = prompt(SIZE + 3)
    a = tiered()
    look = truth(a)
    content = evicted(a, look, a.run(tokens, 1))
    for one in bad:
        damage(path, content[one])
    b = tiered(options={"load": load}, policy="fail")
    one = b.run(tokens, 3)
    assert one.external == bad[0] * BLOCK and one.output == b.model.generate(tokens, 3)
    assert b.stats["failed_disk_blocks"] == len(bad) and b.failures == []
    assert b.stats.get("disk_tokens", 0) == bad[0] * BLOCK, "a failed block is no hit"
    assert look.visible(one)[0][:BLOCKS] == list(range(BLOCKS))
    assert eventually(lambda: look.held() == 0)
    again = tiered().run(tokens, 3)
    assert again.external == SIZE and again.output == one.output


def test_s74_random_damage(tiered, truth, prompt, path):
    chance = random.Random(74)
    a = tiered()
    look = truth(a)
    b = tiered(cached=False, blocks=200)
    for seed in range(12):
        tokens = prompt(SIZE + 3, seed)
        content = evicted(a, look, a.run(tokens, 1))
        for one in chance.sample(range(BLOCKS), chance.randrange(4)):
            damage(path, content[one])
        made = [b.add([*tokens[:SIZE], seed, n], 3) for n in range(3)]
        b.drain()
        for one in made:
            assert one.output == b.model.generate(one.all_token_ids[:SIZE + 2], 3)
            look.visible(one)
    assert b.failures == [] and eventually(lambda: look.held() == 0)
    assert b.stats["failed_disk_blocks"] > 0 and b.stats["disk_tokens"] > 0


def test_windows_of_several_groups(tiered, truth, prompt):
    model = Model((None, 3 * BLOCK))
    tokens = prompt(SIZE + 1)
    a = tiered(model=model)
    look = truth(a)
    one = a.run(tokens, 1)
    found = look.visible(one)
    keys = np.concatenate([own[:][np.array(there, int)] for own, there in
                           zip(look.keys(one), found)])
    arena = arena_of(a)
    assert eventually(lambda: (arena.presence(keys) & kvshm.Presence.G3).all(), 10)
    look.arena.evict(keys)
    b = tiered(model=model)
    two = b.run(tokens, 2)
    assert two.external == SIZE and two.output == model.generate(tokens, 2)
    assert b.stats["disk_tokens"] == SIZE and b.failures == []


def test_a_working_set_larger_than_the_arena(tiered, truth, prompt):
    """Eight prompts, room for two of them: the rest comes from the disk."""
    options = {"size": arena_size(2 * BLOCKS + 8)}
    a, b = tiered(options=options, cached=False), tiered(options=options, cached=False)
    prompts = [prompt(SIZE + 1, seed) for seed in range(8)]
    expected = [a.model.generate(tokens, 2) for tokens in prompts]
    for tokens, want in zip(prompts, expected):
        assert a.run(tokens, 2).output == want
        assert a.workers[0]._worker.arena.tier_drain(10)
    look = truth(a)
    hits = 0
    for n in random.Random(3).choices(range(8), k=40):
        one = (a if n % 2 else b).run(prompts[n], 2)
        assert one.output == expected[n]
        hits += one.external
        look.visible(one)
    assert hits > 40 * SIZE * 0.9
    assert a.stats["disk_tokens"] + b.stats["disk_tokens"] > hits / 2
    assert a.failures == b.failures == [] and eventually(lambda: look.held() == 0)


@pytest.mark.parametrize("image", ["stays", "is gone"])
def test_all_engines_end_and_begin_again(tiered, truth, prompt, path, image):
    """Also where the arena and the image of its slots have gone, as by a reboot."""
    tokens = prompt(SIZE + 3)
    a, b = tiered(), tiered()
    one = a.run(tokens, 1)
    look = truth(a)
    assert written(a, look, one)
    name = look.arena.name
    look.close()
    for engine in (a, b):
        engine.shutdown()
    for left in Path(shm_dir).glob(f"kvshm.{name}*"):
        if image == "is gone" or not left.name.endswith("-g3"):
            left.unlink()
    a, b = tiered(), tiered()
    for engine in (a, b):
        one = engine.run(tokens, 3)
        assert one.external == SIZE and one.output == a.model.generate(tokens, 3)
    assert a.stats["disk_tokens"] == SIZE and b.stats["memory_tokens"] == SIZE


class Stuck:
    """Loads that do not end."""

    def __init__(self, lease):
        self.lease = lease
        self.loading, self.failed = 1, []
        self.states = lease.states

    def release(self):
        self.lease.release()


@pytest.fixture
def stuck(module, monkeypatch):
    """Every load from the disk hangs; the list of what has begun."""
    disk = sys.modules[module.SchedulerSide.__module__].disk
    begun = []

    def hang(self, leases, firsts, wait, real=disk.Fetch.__init__):
        begun.append([Stuck(lease) for lease in leases])
        real(self, begun[-1], firsts, wait)

    monkeypatch.setattr(disk.Fetch, "__init__", hang)
    return begun


def test_a_disk_that_does_not_answer_is_left(tiered, truth, prompt, stuck):
    """After tier_wait what is in memory counts. Others go on meanwhile."""
    tokens, other = prompt(SIZE + 3), prompt(SIZE + 3, 1)
    a = tiered()
    look = truth(a)
    first = a.run(tokens, 1)
    evicted(a, look, first)
    b = tiered(options={"tier_wait": 0.5})
    begin = time.monotonic()
    one, two = b.add(tokens, 3), b.add(other, 3)
    while two.status != "finished":
        b.step()
    assert time.monotonic() - begin < 0.5 and one.status == "waiting"
    assert two.output == b.model.generate(other, 3)
    b.drain()
    assert 0.5 <= time.monotonic() - begin < 5
    assert one.output == b.model.generate(tokens, 3)
    assert b.stats["late_disk_loads"] == 1 and len(stuck) == 1, "asked for once"
    assert all(one.lease.released for one in stuck[0])
    assert eventually(lambda: look.held() == 0)


def test_the_disk_is_asked_once_while_there_is_no_room(tiered, truth, prompt, stuck):
    """The engine asks for a request that waits for blocks at each of its steps."""
    tokens = prompt(SIZE + 3)
    a = tiered()
    look = truth(a)
    evicted(a, look, a.run(tokens, 1))
    b = tiered(options={"tier_wait": 0}, blocks=30)
    other = b.add(prompt(SIZE + 3, 1), 20)
    b.step()
    one = b.add(tokens, 3)
    while other.status != "finished":
        assert one.status == "waiting"
        b.step()
    b.drain()
    assert one.output == b.model.generate(tokens, 3)
    assert len(stuck) == 1 and b.stats["late_disk_loads"] == 1


def test_it_is_aborted_while_it_waits_for_the_disk(tiered, truth, prompt, stuck):
    tokens = prompt(SIZE + 3)
    a = tiered()
    look = truth(a)
    evicted(a, look, a.run(tokens, 1))
    b = tiered()
    one = b.add(tokens, 3)
    for _ in range(5):
        b.step()
    assert one.status == "waiting" and len(stuck) == 1
    b.abort(one)
    b.drain()
    assert stuck[0][0].lease.released and not b.connector._scheduler.states
    assert eventually(lambda: look.held() == 0)


def test_a_reset_forgets_the_disk(tiered, truth, prompt):
    tokens = prompt(SIZE + 3)
    a = tiered()
    look = truth(a)
    one = a.run(tokens, 1)
    old = keys_of(look, one)
    evicted(a, look, one)
    assert a.reset_prefix_cache()
    assert not arena_of(a).presence(old).any()
    b = tiered()
    assert b.run(tokens, 1).external == 0
    assert tiered().run(tokens, 1).external == SIZE


def test_the_arena_goes_and_the_tier_comes_back(tiered, truth, prompt, module, monkeypatch):
    """The file is the old arena's until the last worker has left it."""
    side = module.SchedulerSide.__module__
    for part in ("host", "worker"):
        monkeypatch.setattr(sys.modules[side.replace("scheduler", part)], "RETRY", 0.0)
    tokens = prompt(SIZE + 3)
    a = tiered(cached=False)
    look = truth(a)
    assert written(a, look, a.run(tokens, 1))
    name = look.arena.name
    look.close()
    kvshm.remove(name, force=True)
    for n in range(6):
        assert a.run(prompt(SIZE + 3, 10 + n), 1).output
    assert a.connector._scheduler.host.disk
    assert eventually(lambda: arena_of(a).tier.state == kvshm.TierState.OK)
    one = a.run(tokens, 3)
    assert one.output == a.model.generate(tokens, 3)


def test_the_file_of_another_arena(tiered, engine, new_name, path):
    """At the start it is an error, which names both."""
    tiered()
    with pytest.raises(kvshm.Busy, match=path.name):
        engine(options={"name": new_name(), "tier": str(path), "tier_size": "4MiB"})


def test_what_the_options_do(tiered, path):
    a = tiered(options={"tier_direct": "off", "tier_sync": True, "tier_admit": 2,
                        "tier_min_speed": "1KiB", "tier_mover": "off"})
    tier = arena_of(a).tier
    assert tier.engine == "threads" and not tier.direct and tier.path == str(path)
    assert path.stat().st_size <= 4 << 20
    assert tier.mover == ""
    b = tiered(options={"write": False})
    assert not b.workers[0]._worker._disk and b.connector._scheduler.host.disk
    assert str(path) in b.connector._scheduler.host.describe()


def test_seldom_used_blocks_are_not_written(tiered, truth, prompt):
    """tier_admit=2: the first time it is offered, nothing is written."""
    a = tiered(options={"tier_admit": 2})
    one = a.run(prompt(SIZE + 3), 1)
    look = truth(a)
    assert a.workers[0]._worker.arena.tier_drain(10)
    assert not (arena_of(a).presence(keys_of(look, one)) & kvshm.Presence.G3).any()


@pytest.mark.parametrize("options, written", [
    ({}, True), ({"tier_stores": 1}, True), ({"tier_write": "off"}, False),
    ({"tier_write": "lazy", "tier_age": 3600}, False),
    ({"tier_write": "lazy", "tier_age": 3600, "tier_gather": 0}, True),
    ({"tier_write": "lazy", "tier_age": 0.05}, True),
    ({"tier_write": "watermark", "tier_low": 0.001}, False),
    ({"tier_write": "watermark", "tier_low": 1}, True), ({"tier_write": "release"}, True)],
    ids=str)
def test_when_blocks_go_down(tiered, truth, prompt, options, written):
    """While the request that they are of still runs."""
    a = tiered(options=options)
    arena, look = arena_of(a), truth(a)
    one = a.add(prompt(SIZE + 3), 40)
    while a.stats.get("saved_blocks", 0) < BLOCKS:
        a.step()
    keys = keys_of(look, one)[:BLOCKS]

    def there():
        return (arena.presence(keys) & kvshm.Presence.G3 != 0).tolist()
    if written:
        assert eventually(lambda: all(there()), 10)
    else:
        time.sleep(0.3)
        assert not any(there())
    assert one.status == "running"
    a.drain()


def test_what_is_not_worth_a_write(tiered, truth, prompt):
    """By the rules of who moves, which is the first engine here."""
    a = tiered(options={"tier_min_priority": 60, "tier_min_prefix": 4, "priority": 70})
    b = tiered(options={"tier_mover": "off"})  # stores at priority 50
    arena, look = arena_of(a), truth(a)
    short, low = a.run(prompt(3 * BLOCK + 3), 1), b.run(prompt(SIZE + 3, 1), 1)
    high = a.run(prompt(SIZE + 3, 2), 1)
    assert arena.tier.mover == "this" and written(a, look, high)
    for one in (short, low):
        assert not (arena.presence(keys_of(look, one)) & kvshm.Presence.G3).any()


@pytest.fixture
def start():
    started = []
    env = {"PYTHONPATH": os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])}

    def run(code, *args):
        started.append(Worker(code, *args, env=env))
        return started[-1]
    yield run
    for one in started:
        one.close()


@pytest.mark.parametrize("load", ["sync", "async"])
def test_s77_a_shard_is_missing_on_disk(start, tiered, truth, prompt, tmp_path, path, arena_name,
                                        load):
    """Four rank processes. One rank's slice of one block is damaged on the disk: the hit ends
    before that block, for all of them alike."""
    ranks, missing = 4, 6
    model = Model(layers=1, ranks=ranks)
    options = {"name": arena_name, "load": load, "tier": str(path), "tier_size": "4MiB",
               "tier_engine": "threads"}
    a = tiered(model=model, options=options, blocks=80, cached=False)
    kv = kv_cache_config(model, 80, BLOCK)
    config = vllm_config(options, BLOCK, ranks, f"{model.seed}")
    remote(a, start, tmp_path, kv, [for_rank(config, r) for r in range(ranks)], {})
    look = truth(a)
    for rank in range(ranks):
        tokens = prompt(SIZE + 1, rank)
        content = evicted(a, look, a.run(tokens, 2))
        damage(path, content[missing], rank, ranks)
        one = a.run(tokens, 2)
        assert one.external == missing * BLOCK and one.output == model.generate(tokens, 2)
        look.visible(one)  # compares the bytes of all four parts
    assert a.failures == [] and a.stats["failed_disk_blocks"] == ranks
    assert eventually(lambda: look.held() == 0)


class Told:
    """An arena, and what its scheduler was doing at each tier_flush()."""

    def __init__(self, side):
        self._side, self._arena, self.flushes = side, side.host.arena, []
        side.host.arena = self

    def tier_flush(self):
        self.flushes.append(self._side.busy())
        self._arena.tier_flush()

    def __getattr__(self, name):
        return getattr(self._arena, name)


def test_an_idle_engine_lets_what_was_gathered_go_down(tiered, truth, prompt):
    """tier_write="idle": nothing while it computes, all when nothing is scheduled, told once."""
    a = tiered(options={"tier_write": "idle"})
    arena, look, told = arena_of(a), truth(a), Told(a.connector._scheduler)
    one = a.add(prompt(SIZE + 3), 40)
    while a.stats.get("saved_blocks", 0) < BLOCKS:
        a.step()
    time.sleep(0.3)
    assert one.status == "running" and not told.flushes
    assert not (arena.presence(keys_of(look, one)) & kvshm.Presence.G3).any()
    a.drain()
    assert told.flushes == [False] and written(a, look, one)
    a.run(prompt(SIZE + 3), 1)  # stores nothing
    for _ in range(3):
        a.step()
    assert len(told.flushes) == 1
    a.run(prompt(SIZE + 3, 1), 1)
    assert len(told.flushes) == 2


def test_nothing_is_flushed_while_a_copy_is_under_way(tiered, prompt, script):
    """Nor where nothing is scheduled; when it is over, its report comes with a step or after it."""
    a = tiered(options={"tier_write": "idle"})
    told = Told(a.connector._scheduler)
    one = a.add(prompt(SIZE + 3), 20)
    while not a.stats.get("saved_blocks", 0):
        a.step()
    script.hold_saves = True
    while one.status != "finished":
        a.step()
    for _ in range(3):
        a.step()
    assert a.connector.has_pending_push_work() and not told.flushes
    script.release_saves()
    a.drain()
    assert told.flushes == [False]


# ---- ahead of a request's turn -------------------------------------------------------------------

@pytest.mark.parametrize("limit, first, second", [(0, 0, 0), (BLOCKS, BLOCKS, 0),
                                                  (BLOCKS + 3, BLOCKS, 3), (99, BLOCKS, BLOCKS)])
def test_what_the_disk_has_comes_when_a_request_gets_in_line(tiered, truth, prompt, limit, first,
                                                             second):
    """prefetch_ahead: at most so many blocks of all that wait, with no step of the engine."""
    a = tiered()
    look = truth(a)
    prompts = [prompt(SIZE + 3, seed) for seed in range(2)]
    for tokens in prompts:
        evicted(a, look, a.run(tokens, 1))
    b = tiered(options={"prefetch_ahead": limit})
    asked = [b.add(tokens, 3) for tokens in prompts]
    arena = arena_of(b)

    def there():
        return [int((arena.presence(own) & kvshm.Presence.G2 != 0).sum())
                for own in (keys_of(look, one) for one in asked)]
    assert eventually(lambda: there() == [first, second], 10), there()
    b.drain()
    for one, tokens in zip(asked, prompts):
        assert one.external == SIZE and one.output == b.model.generate(tokens, 3)
    assert b.failures == [] and eventually(lambda: look.held() == 0)


def test_a_request_that_is_given_up_leaves_the_line(tiered, truth, prompt):
    a = tiered()
    look = truth(a)
    prompts = [prompt(SIZE + 3, seed) for seed in range(2)]
    for tokens in prompts:
        evicted(a, look, a.run(tokens, 1))
    b = tiered(options={"prefetch_ahead": BLOCKS})
    first, second = (b.add(tokens, 3) for tokens in prompts)
    arena, keys = arena_of(b), keys_of(look, second)
    b.abort(first)
    assert eventually(lambda: (arena.presence(keys) & kvshm.Presence.G2).all(), 10)
    b.drain()
    assert eventually(lambda: look.held() == 0)
