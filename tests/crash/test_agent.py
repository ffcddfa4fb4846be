# SPDX-License-Identifier: Apache-2.0
"""`kvshm agent`, a process: it marks; killed, another one goes on; it ends when asked to."""
from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kvshm
import pytest
from kvshm import eviction
from support.arenas import keys, store
from support.cli import kvshm_cli, spawn_cli

pytestmark = pytest.mark.crash

POLICY = """\
import os, time
from kvshm import eviction

def youngest(table, now):
    return 1e6 - eviction.age(table, now)

def fails(table, now):
    raise ZeroDivisionError("mine")

def forks(table, now):
    if os.fork() == 0:
        os.closerange(0, 3)  # but whatever else there is stays with the child
        time.sleep(5)
        os._exit(0)
    return youngest(table, now)
"""
BLOCKS = 64
_seeds = itertools.count(100)


@pytest.fixture
def arena(arena_name: str) -> Iterator[Any]:
    with kvshm.Arena.create(arena_name, blocks=BLOCKS, block_bytes=64, pin="off",
                            helper=False) as one:
        for key in keys(BLOCKS, 3):
            store(one, [key]).release()
        yield one


@pytest.fixture
def agent(arena: Any, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    (tmp_path / "kv_test_policy.py").write_text(POLICY)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    made: list[subprocess.Popen[str]] = []

    def start(policy: str = "kv_test_policy:youngest", *more: object) -> "subprocess.Popen[str]":
        made.append(spawn_cli("agent", arena.name, "--policy", policy, "--low", "16", "--high",
                              "32", *more, env=env))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.communicate()


def event(agent: "subprocess.Popen[str]", wanted: str) -> dict[str, Any]:
    """Its next JSON line of this event."""
    assert agent.stdout is not None
    for line in agent.stdout:
        found: dict[str, Any] = json.loads(line)
        if found["event"] == wanted:
            return found
    raise AssertionError(f"it ended without {wanted!r}: {agent.stderr and agent.stderr.read()}")


def wait_for_marks(arena: Any, n: int, seconds: float = 10.0) -> float:
    begin = time.monotonic()
    while eviction.marks_left(arena) < n:
        assert time.monotonic() - begin < seconds, eviction.marks_left(arena)
        time.sleep(0.005)
    return time.monotonic() - begin


def evict(arena: Any, n: int) -> list[bytes]:
    """n keyed blocks go, and as many come."""
    gone = []
    for key in keys(n, next(_seeds)):
        fill = arena.allocate(1, keys=[key])
        gone += [bytes(one) for one in fill.evicted]
        fill.register().release()
    return gone


def test_a_killed_evictor_is_replaced_within_a_second_and_its_marks_stay(arena, agent):
    there = [bytes(key) for key in keys(BLOCKS, 3)]
    first = agent("kv_test_policy:youngest", "--json")
    event(first, "elected")
    wait_for_marks(arena, 32)
    second = agent("kv_test_policy:youngest", "--json")
    event(second, "standing_by")
    first.send_signal(signal.SIGSTOP)  # it may not refill between our look and its death
    os.waitid(os.P_PID, first.pid, os.WSTOPPED)
    assert evict(arena, 4) == there[:-5:-1], "by the marks"
    left = eviction.marks_left(arena)
    assert left == 28
    begin = time.monotonic()
    first.kill()
    first.wait()
    event(second, "elected")
    assert time.monotonic() - begin < 1.0
    assert eviction.marks_left(arena) == left, "they are as good as they were"
    assert evict(arena, 4) == there[-5:-9:-1]
    evict(arena, 12)
    wait_for_marks(arena, 32)
    assert arena.reap().slots_dead == 1
    assert arena.is_valid() == []


def test_a_child_of_a_killed_evictor_does_not_keep_the_post(arena, agent):
    first = agent("kv_test_policy:forks", "--json")
    event(first, "elected")
    wait_for_marks(arena, 32)
    first.kill()
    first.wait()
    assert eviction.elect(arena, "evictor")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_asked_to(arena, agent, number):
    one = agent()
    wait_for_marks(arena, 32)
    one.send_signal(number)
    out, err = one.communicate(timeout=10)
    assert (one.returncode, err) == (0, "")
    lines = [line.split(f"{arena.name}: ")[1] for line in out.splitlines()]
    assert lines[:2] == [
        "kv_test_policy:youngest keeps 16 to 32 of 64 blocks free or marked", "elected"]
    assert lines[-1].startswith(f"ends ({number.name}): 32 blocks marked in 1 refill, ")
    assert eviction.marks_left(arena) == 32
    assert eviction.elect(arena, "evictor")
    assert [p.pid for p in arena.processes()] == [os.getpid()], "it gave its slot back"


def test_refills_are_summed_up(arena, agent):
    one = agent("kv_test_policy:youngest", "--json", "--interval", "0.2")
    event(one, "elected")
    wait_for_marks(arena, 32)
    evict(arena, 20)
    seen = event(one, "refills")
    marked = seen["marked"]
    while marked < 52:
        marked += event(one, "refills")["marked"]
    assert marked == 52 and seen["seconds"] > 0 and seen["kind"] == "agent" and seen["schema"] == 1


def test_once(arena, agent):
    one = agent("lru", "--once")
    out, err = one.communicate(timeout=30)
    assert one.returncode == 0 and "32 blocks marked in 1 refill" in out and not err
    assert eviction.marks_left(arena) == 32
    again = agent("lru", "--once", "--json")
    assert event(again, "ended")["refills"] == 0
    assert again.wait(10) == 0
    assert eviction.elect(arena, "evictor")
    refused = kvshm_cli("agent", arena.name, "--policy", "lru", "--once", "-q")
    assert refused.code == 6 and "another process is its evictor" in refused.err


def test_a_policy_that_raises(arena, agent):
    one = agent("kv_test_policy:fails", "--once")
    out, err = one.communicate(timeout=30)
    assert one.returncode == 1 and err.count("ZeroDivisionError: mine") == 1
    assert "the policy failed, the arena's own goes on: ZeroDivisionError: mine" in out
    assert len(evict(arena, 3)) == 3


def test_an_arena_that_goes_ends_it(arena, agent):
    one = agent("lru", "--json")
    event(one, "elected")
    two = agent("lru", "--json")
    event(two, "standing_by")
    kvshm.remove(arena.name, force=True)
    for each in (one, two):
        assert each.wait(10) == 3
        assert each.stderr is not None and "removed" in each.stderr.read()


@pytest.mark.parametrize(("argv", "code", "words"), [
    (["--policy", "no_such_kv:x"], 2, "policy: no module 'no_such_kv'"),
    (["--policy", "json:nothing"], 2, "no attribute 'nothing'"),
    (["--policy", "lru", "--low", "9", "--high", "5"], 2, "expected 0 <= low <= high <= 64"),
    (["--policy", "lru", "--low", "-1%"], 2, "--low"),
    (["--policy", "lru", "--cpu", "200%"], 2, "wanted a share"),
    ([], 2, "--tier FILE to move blocks"),
    (["--write", "lazy", "--policy", "lru"], 2, "need --tier FILE"),
    (["--tier", "/tmp/x", "--once"], 2, "--once"),
    (["--tier", "/tmp/x", "--tier-option", "mover=off"], 2, "wanted NAME=VALUE"),
    (["--tier", "/tmp/x", "--tier-option", "admitt=2"], 2, "no option 'admitt'"),
])
def test_what_cannot_be_is_one_line(arena, argv, code, words):
    done = kvshm_cli("agent", arena.name, *argv)
    assert done.code == code and words in done.err and done.err.count("\n") == 1
    assert kvshm_cli("agent", "no-such-arena", "--policy", "lru").code == 3
