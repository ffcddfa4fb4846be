# SPDX-License-Identifier: Apache-2.0
"""`kvshm agent --tier`: it moves for all, is killed and replaced, ends when asked to; and what
`kvshm stat` says of who moves and of what waits, also when nobody lives any more."""
from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kvshm
import pytest
from kvshm.tools.inspector import tiers
from support.arenas import eventually, keys, store
from support.cli import kvshm_cli, spawn_cli

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs/inspector.schema.json").read_text())
Agent = "subprocess.Popen[str]"
NONE = {name: {"waiting": 0, "taken": 0} for name in ("asked", "usual", "gathered", "ahead")}


@pytest.fixture
def opened(arena_name: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """The arena as an engine has it that moves nothing itself."""
    made: list[Any] = []

    def open_(**options: Any) -> Any:
        made.append(kvshm.Arena.open(
            arena_name, blocks=64, block_bytes=4096, pin="off", tier=tmp_path / "tier",
            tier_size="1MiB", tier_options={"engine": "threads", "mover": "off"} | options))
        assert eventually(lambda: made[-1].tier.state == kvshm.TierState.OK)
        return made[-1]

    yield open_
    for one in made:
        one.close()


@pytest.fixture
def agent(arena_name: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made: list[subprocess.Popen[str]] = []

    def start(*more: object) -> Any:
        made.append(spawn_cli("agent", arena_name, "--tier", tmp_path / "tier", "--tier-option",
                              "engine=threads", "--interval", "0.1", *more))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.communicate()


def event(agent: Any, wanted: str) -> dict[str, Any]:
    """Its next JSON line of this event."""
    for line in agent.stdout:
        found: dict[str, Any] = json.loads(line)
        if found["event"] == wanted:
            return found
    raise AssertionError(f"it ended without {wanted!r}: {agent.stderr.read()}")


def queues(name: str) -> dict[str, Any]:
    found = json.loads(kvshm_cli("stat", name, "--json").out)
    jsonschema.validate(found, SCHEMA)
    made: dict[str, Any] = found["queues"]
    return made


def killed(agent: Any) -> None:
    agent.kill()
    assert agent.wait(10) == -signal.SIGKILL


def test_it_moves_what_others_offer(opened, agent):
    arena = opened()
    store(arena, keys(8)).release()
    assert arena.tier_drain(0.05) is False
    found = queues(arena.name)
    assert found == {"mover": None, "write": None,
                     "lanes": NONE | {"usual": {"waiting": 8, "taken": 0}}}
    assert "mover     nobody" in kvshm_cli("stat", arena.name).out
    one = agent("--json")
    started = event(one, "started")
    assert (started["policy"], started["write"], started["low"]) == (None, "through", None)
    event(one, "mover_elected")
    assert arena.tier_drain(20) and arena.tier.ready == 8
    stored = 0
    while stored < 8:
        stored += event(one, "moved")["stored"]
    found = queues(arena.name)
    (mine,) = (p for p in arena.processes() if p.pid == one.pid)
    assert found == {"write": "through", "lanes": NONE, "mover": {
        "slot": mine.slot, "pid": one.pid, "label": "kvshm agent", "alive": True}}
    assert queues(tiers.image_of(arena.name)) == found
    one.terminate()
    ended = event(one, "ended")
    assert (one.wait(10), ended["why"], ended["stored"], stored) == (0, "SIGTERM", 8, 8)
    assert [p.pid for p in arena.processes()] == [os.getpid()], "it gave its slot back"
    assert queues(arena.name)["mover"] is None


def test_a_killed_one_is_replaced(opened, agent):
    arena = opened()
    first = agent("--json")
    event(first, "mover_elected")
    second = agent("--json")
    assert event(second, "mover_standing_by")["pid"] == first.pid
    killed(first)
    store(arena, keys(8)).release()
    event(second, "mover_elected")
    assert arena.tier_drain(20) and arena.tier.ready == 8
    assert queues(arena.name)["mover"]["pid"] == second.pid
    killed(second)
    store(arena, keys(4, seed=9)).release()
    third = opened(mover="auto")  # an engine does as well
    assert arena.tier_drain(20) and arena.tier.ready == 12
    assert queues(arena.name)["mover"]["pid"] == os.getpid() and third.tier.mover == "this"


def test_nobody_after_a_killed_one(opened, agent):
    arena = opened()
    one = agent("--json")
    event(one, "mover_elected")
    killed(one)
    with store(arena, keys(5)) as held:
        assert arena.tier_store(held.handles[:2]) == 2
    assert arena.prefetch(keys(3, seed=4)) == 3
    arena.close()
    found = queues(arena.name)
    assert (found["mover"]["pid"], found["mover"]["alive"]) == (one.pid, False)
    assert found["lanes"] == NONE | {
        name: {"waiting": n, "taken": 0} for name, n in (("usual", 5), ("asked", 2), ("ahead", 3))}
    text = kvshm_cli("stat", arena.name).out.split("# queues\n")[1]
    assert f"pid {one.pid} (kvshm agent, slot " in text and "DEAD" in text.split("\n")[0]
    assert "5 waiting, 0 being moved" in text
    verified = kvshm_cli("verify", arena.name, "--json").json
    assert {i["number"]: i["broken"] for i in verified["invariants"]}[16] == 0


def test_whoever_has_the_slot_of_a_dead_one_does_not_move(opened, agent):
    arena = opened()
    one = agent("--json")
    event(one, "mover_elected")
    slot = queues(arena.name)["mover"]["slot"]
    killed(one)
    assert arena.reap().slots_dead == 1
    assert queues(arena.name)["mover"] is None
    with kvshm.Arena.attach(arena.name, pin="off") as next_:
        assert next_.slot == slot
        assert queues(arena.name)["mover"] is None


def test_what_was_gathered_goes_down_at_its_end(opened, agent):
    arena = opened(write="idle")
    one = agent("--json", "--write", "idle")
    event(one, "mover_elected")
    store(arena, keys(8)).release()
    while event(one, "moved")["queued"]["gathered"] != 8:
        pass
    assert arena.tier.ready == 0
    one.terminate()
    assert event(one, "ended")["stored"] == 8 and one.wait(10) == 0
    assert arena.tier.ready == 8


def test_words_for_people_and_a_policy_beside_it(opened, agent, tmp_path):
    arena = opened()
    one = agent("--policy", "lru", "--low", "4", "--high", "8")
    store(arena, keys(8)).release()
    assert arena.tier_drain(30)
    assert eventually(lambda: queues(arena.name)["mover"] is not None)
    one.terminate()
    out, err = one.communicate(timeout=10)
    assert (one.returncode, err) == (0, "")
    lines = [line.split(f"{arena.name}: ")[1] for line in out.splitlines()]
    assert lines[0] == (f"lru keeps 4 to 8 of 64 blocks free or marked; stands for mover of "
                        f"{tmp_path / 'tier'} (write through)")
    assert {"elected", "elected mover"} <= set(lines)
    assert lines[-1].startswith("ends (SIGTERM): 0 blocks marked in 0 refills, ")
    assert lines[-1].endswith("; 8 blocks stored, 0 loaded ahead, 0 dropped")


def test_an_arena_that_goes_ends_it(opened, agent):
    arena = opened()
    one = agent("--json")
    event(one, "mover_elected")
    kvshm.remove(arena.name, force=True)
    assert one.wait(10) == 3 and "was removed" in one.stderr.read()


def test_options_reach_the_mover(opened, agent):
    arena = opened()
    one = agent("--json", "--tier-option", "min_prefix=4")
    event(one, "mover_elected")
    store(arena, keys(2)).release()
    assert arena.tier_drain(20) and arena.tier.ready == 0
    assert arena.stats().tier_rejected_total == 2
    bad = agent("--tier-option", "admit=lots")
    assert bad.wait(10) == 2 and "admit" in bad.stderr.read()


def test_a_tier_that_cannot_be(opened, agent, tmp_path):
    arena = opened()
    done = kvshm_cli("agent", arena.name, "--tier", tmp_path / "no" / "tier")
    assert done.code not in (0, 1) and done.err.count("\n") == 1 and "no/tier" in done.err


def test_warmup_does_not_move(opened, tmp_path):
    arena = opened()
    wanted = tmp_path / "keys"
    wanted.write_text("".join(bytes(key).hex() + "\n" for key in keys(3)))
    kvshm_cli("warmup", arena.name, "--keys", wanted)
    assert arena.stats().tier_takeovers_total == 0
