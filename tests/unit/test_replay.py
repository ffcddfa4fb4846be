# SPDX-License-Identifier: Apache-2.0
"""`kvshm replay`: what a real arena hits, beside exact LRU, and how the command ends."""
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import jsonschema
import kvshm
import numpy as np
import pytest
from kvshm.eviction import PRESETS, set_policy
from kvshm.eviction.exact import exact_lru
from kvshm.eviction.serving import prefix, serve
from kvshm.tools.replay import temporary
from kvshm.tools.replay.controller import step_of
from kvshm.tools.replay.drive import pieces, replay, serve_all
from kvshm.tools.replay.keys import keys_of
from kvshm.tools.replay.synthetic import KINDS, synthetic
from support import shm_dir
from support.cli import kvshm_cli, spawn_cli
from support.traces import recorded

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/replay.schema.json").read_text())
Make = Callable[..., kvshm.Arena]


def leavings(pid: int | None = None) -> list[str]:
    return [p.name for p in shm_dir.glob(f"kvshm.replay-{pid or '*'}-*")]


def ask(arena: kvshm.Arena, *requests: list[int]) -> list[int]:
    ids = np.array([x for r in requests for x in r], np.uint64)
    bounds = np.cumsum([0, *map(len, requests)]).astype(np.int64)
    hits = np.full(len(requests), -1, np.int32)
    assert serve(arena, keys_of(ids), bounds, hits) == 0
    assert arena.stats().blocks_held == arena.stats().blocks_filling == 0
    return hits.tolist()


def present(arena: kvshm.Arena, ids: list[int]) -> list[int]:
    mask = arena.presence(keys_of(np.array(ids, np.uint64)))
    return [x for x, found in zip(ids, mask, strict=True) if found]


def test_hits_are_the_longest_prefix(make_arena: Make) -> None:
    arena = make_arena(16, 0)
    assert ask(arena, [1, 2, 3], [1, 2, 4], [1, 2, 3, 5], [9], []) == [0, 2, 3, 0, 0]
    assert present(arena, [1, 2, 3, 4, 5, 9, 7]) == [1, 2, 3, 4, 5, 9]
    assert prefix(arena, keys_of(np.array([1, 2, 4, 7], np.uint64))) == 3


def test_the_head_is_the_youngest(make_arena: Make) -> None:
    """Whether its blocks were found or filled: as exact LRU has it."""
    arena = make_arena(8, 0)
    set_policy(arena, "lru")
    for request in ([1, 2, 3], [1, 2, 4, 5]):
        ask(arena, request)
        with arena.scan(keys_of(np.array(request, np.uint64))) as found:
            stamps = [arena.block(i).stamp for i in found.ids]
        assert stamps == sorted(stamps, reverse=True)
        assert len(set(stamps)) == len(request)


def test_present_blocks_behind_a_gap(make_arena: Make) -> None:
    """No hits; not stored twice; touched; and children of what fills the gap."""
    arena = make_arena(8, 0)
    ask(arena, [1, 2, 3, 4])
    assert arena.evict(keys_of(np.array([2], np.uint64))) == 1
    assert present(arena, [1, 2, 3, 4]) == [1, 3, 4]
    assert ask(arena, [1, 2, 3, 4]) == [1]
    stats = arena.stats()
    assert (stats.blocks_inactive, stats.duplicates_total, stats.allocated_total) == (4, 0, 5)
    with arena.match(keys_of(np.array([1, 2, 3, 4], np.uint64))) as found:
        ids = list(found.ids)
        assert [arena.block(i).parent for i in ids[1:]] == ids[:-1]
        stamps = [arena.block(i).stamp for i in ids]
    assert stamps == sorted(stamps, reverse=True)


def test_a_request_longer_than_the_arena_is_cut(make_arena: Make) -> None:
    arena = make_arena(4, 0)
    assert ask(arena, list(range(1, 9)), list(range(1, 9))) == [0, 4]
    assert present(arena, list(range(1, 9))) == [1, 2, 3, 4]


def test_no_room_is_counted(make_arena: Make) -> None:
    """Somebody holds most of it: the head of the request is kept, the rest is refused."""
    arena = make_arena(8, 0)
    with arena.allocate(6) as held:
        hits = np.zeros(2, np.int32)
        keys = keys_of(np.array([1, 2, 3, 4, 1, 2, 3, 4], np.uint64))
        # 4 do not fit, 2 do; the second time 2 are hits and evict nothing
        assert serve(arena, keys, np.array([0, 4, 8]), hits) == 4
        assert hits.tolist() == [0, 2]
        held.abort()


def test_blocks_are_their_tenant_s(make_arena: Make) -> None:
    arena, hits = make_arena(8, 0), np.zeros(3, np.int32)
    keys = keys_of(np.arange(6, dtype=np.uint64))
    bounds = np.array([0, 2, 4, 6])
    serve(arena, keys, bounds, hits, np.array([0, 3, 1]))
    with arena.scan(keys) as found:
        assert [arena.block(i).tenant for i in found.ids] == [0, 0, 3, 3, 1, 1]
    for wrong in (np.array([0, 1]), np.array([0, -1, 1]), np.array([0, 2**40, 1])):
        arena.clear()
        with pytest.raises(kvshm.InvalidArgument):
            serve(arena, keys, bounds, hits, wrong)
        assert arena.stats().blocks_held == arena.stats().blocks_filling == 0


def test_keys_differ() -> None:
    ids = np.concatenate([np.arange(100_000, dtype=np.uint64), ~np.arange(5, dtype=np.uint64),
                          np.array([0x61C8864680B583EB, 0xC3910C8D016B07D6], np.uint64)])
    keys = keys_of(ids)  # of the last two one half is zero
    assert len(np.unique(keys, axis=0)) == len(ids)
    assert keys.any(axis=1).all()


def test_pieces() -> None:
    bounds = np.array([0, 3, 3, 10, 11, 12, 40], np.int64)
    assert list(pieces(bounds, 4)) == [(0, 2), (2, 3), (3, 5), (5, 6)]
    assert list(pieces(np.array([0]), 4)) == []


def test_the_controller_takes_a_step_now_and_then(make_arena: Make,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    arena, trace, steps = make_arena(500, 0), synthetic("agentic", 1, 300), []
    monkeypatch.setattr("kvshm.tools.replay.controller.adaptive",
                        types.SimpleNamespace(step=steps.append))
    assert step_of("lru") is None
    step = step_of("adaptive")
    assert step is not None
    serve_all(arena, trace, np.zeros(300, np.int32), step, lambda requests: None)
    assert set(steps) == {arena}
    assert trace.accesses / 2048 <= len(steps) < 1.2 * trace.accesses / 2048 + 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_arena_s_lru_is_about_exact_lru(kind: str) -> None:
    trace = synthetic(kind, 11, 3000)
    blocks = trace.blocks_of(0.1)
    found = replay(trace, "lru", blocks)
    exact = exact_lru(trace.dense, trace.bounds, blocks).sum()
    assert found.refused == 0 and found.broken == ()
    assert abs(int(found.hits.sum()) - int(exact)) < 0.01 * trace.accesses
    assert found.counted["evicted_total"] == found.counted["allocated_total"] - blocks
    assert not leavings(os.getpid())


@pytest.mark.parametrize("name, blocks, exact, within", [
    ("mooncake_conversation", 9139, 19.58, 0.7),
    ("mooncake_conversation", 18279, 27.89, 0.7),
    ("mooncake_conversation", 36558, 34.53, 0.7),
    ("mooncake_synthetic", 4392, 26.23, 0.7),
    ("mooncake_synthetic", 8784, 39.31, 0.7),
])
def test_recorded(name: str, blocks: int, exact: float, within: float) -> None:
    trace = recorded(name)
    assert abs(100 * replay(trace, "lru", blocks).ratios(trace).block - exact) < within


@pytest.mark.slow
def test_recorded_agentic() -> None:
    trace = recorded("claude_code_agentic", tokens_per_block=512)
    assert trace.accesses == 11_767_283
    assert abs(100 * replay(trace, "lru", 8269).ratios(trace).block - 85.79) < 1.0


def test_synthetic_loads_are_what_the_seed_says() -> None:
    assert KINDS.keys() == {"chat", "agentic", "api"}
    for kind in KINDS:
        one, same, other = synthetic(kind, 1, 400), synthetic(kind, 1, 400), synthetic(kind, 2, 400)
        assert np.array_equal(one.ids, same.ids) and np.array_equal(one.seconds, same.seconds)
        assert not np.array_equal(one.bounds, other.bounds)
        assert one.requests == 400 and (np.diff(one.seconds) >= 0).all()
        # prefix-chained: an id has always the same one before it
        first = np.zeros(one.accesses, bool)
        first[one.bounds[:-1]] = True
        before = np.where(first, 2**63, np.roll(one.ids, 1))
        pairs = np.unique(np.stack([one.ids, before]), axis=1)
        assert pairs.shape[1] == one.unique
        assert ((one.tokens + 511) // 512 == one.lengths).all()


def test_json() -> None:
    done = kvshm_cli("replay", "--synthetic", "chat", "--seed", 5, "--requests", 500, "--policy",
                     "lru", "--blocks", 300, "--json", "-q")
    assert done.code == 0, done.err
    found = done.json
    jsonschema.validate(found, SCHEMA)
    assert (found["kind"], found["policy"], found["blocks"], found["requests"]) == (
        "replay", "lru", 300, 500)
    for name in ("block_hit_ratio", "token_hit_ratio", "compute_hit_ratio", "lru_reference",
                 "arc_reference", "opt_reference"):
        assert 0 < found[name] < 1, name
    assert max(found["lru_reference"], found["arc_reference"]) <= found["opt_reference"]
    assert found["block_hit_ratio"] == pytest.approx(found["lru_reference"], abs=0.02)
    assert found["walk_steps_per_eviction"] > 0
    assert found["broken"] == [] and found["refused_blocks"] == 0


def test_text_and_no_reference() -> None:
    argv = ["replay", "--synthetic", "api", "--requests", 300, "--fraction", 0.2]
    done = kvshm_cli(*argv)
    assert done.code == 0 and "Belady" in done.out and "exact LRU" in done.out
    assert "Belady" not in kvshm_cli(*argv, "--no-reference").out
    bare = kvshm_cli(*argv, "--no-reference", "--json").json
    jsonschema.validate(bare, SCHEMA)
    assert bare["lru_reference"] is None and bare["references"] == {}


@pytest.mark.parametrize("policy", PRESETS)
def test_every_preset_runs(policy: str) -> None:
    found = kvshm_cli("replay", "--synthetic", "api", "--requests", 400, "--policy", policy,
                      "--json", "--no-reference").json
    assert found["policy"] == policy and found["block_hit_ratio"] > 0.1 and not found["broken"]


@pytest.mark.parametrize("argv, said", [
    ([], "no TRACE"),
    (["x", "--synthetic", "chat"], "wanted one of them"),
    (["/nowhere/x"], "/nowhere/x: no such file"),
    (["--synthetic", "chat", "--policy", "best"], "--policy best: there is "),
    (["--synthetic", "chat", "--fraction", "2"], "wanted more than 0, at most 1"),
    (["--synthetic", "chat", "--fraction", "1e-9"], "is no block"),
    (["--synthetic", "chat", "--blocks", "0"], "wanted 1 or more"),
])
def test_usage(argv: list[str], said: str) -> None:
    done = kvshm_cli("replay", *argv)
    assert done.code == 2 and said in done.err and done.err.startswith("kvshm: ")


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_arena_goes_when_the_command_is_ended(number: int, code: int, tmp_path: Path) -> None:
    load = tmp_path / "long"
    with open(load, "w") as file:
        for i in range(60_000):
            file.write(json.dumps(dict(timestamp=i, input_length=51200, runs=[[i * 100, 100]]))
                       + "\n")
    one = spawn_cli("replay", load, "--policy", "lru", "--fraction", "0.1")
    end = time.monotonic() + 60
    while not leavings(one.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert leavings(one.pid)
    one.send_signal(number)
    _, err = one.communicate(timeout=30)
    assert one.returncode == code, err
    assert not leavings(one.pid)


def test_what_a_killed_replay_left_goes_with_the_next() -> None:
    code = ("import os, signal; from kvshm.tools.replay.temporary import temporary_arena\n"
            "with temporary_arena(8, 'lru'): os.kill(os.getpid(), signal.SIGKILL)")
    one = subprocess.Popen([sys.executable, "-c", code])
    one.wait(30)
    assert leavings(one.pid)
    with temporary.temporary_arena(8, "lru"):
        temporary.remove_stale()
        assert not leavings(one.pid)
        assert leavings(os.getpid())
