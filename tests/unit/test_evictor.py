# SPDX-License-Identifier: Apache-2.0
"""The elected evictor in one process: its reserve, its pauses, and policies that fail."""
from __future__ import annotations

import logging
import threading
import time
from typing import Any

import kvshm
import numpy as np
import pytest
from kvshm import eviction
from kvshm.eviction import Evictor, load_policy
from kvshm.eviction.evictor import watermarks
from support.arenas import keys, store


class Told:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, **facts: Any) -> None:
        self.events.append((event, facts))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]


def youngest(table: Any, now: int) -> Any:
    """What the arena's own policy would never take."""
    return 1e6 - eviction.age(table, now)


def roots(arena: Any, n: int = 16, seed: int = 31) -> list[bytes]:
    wanted = keys(n, seed)
    for key in wanted:
        store(arena, [key]).release()
    return [bytes(key) for key in wanted]


def goes_next(arena: Any, n: int) -> list[bytes]:
    with arena.allocate(n) as fill:
        return [bytes(key) for key in fill.evicted]


def test_it_keeps_the_reserve_and_allocations_take_it(arena):
    there = roots(arena)
    told = Told()
    evictor = Evictor(arena, youngest, 4, 8, tell=told)
    evictor.step()
    assert told.names == ["elected", "refill"] and eviction.marks_left(arena) == 8
    assert evictor.step() == pytest.approx(0.05)  # full: one word is looked at
    held = arena.allocate(3)
    assert [bytes(key) for key in held.evicted] == there[:-4:-1]
    evictor.step()
    assert eviction.marks_left(arena) == 5  # still above low
    more = arena.allocate(2)
    evictor.step()
    assert eviction.marks_left(arena) == 8 and told.names.count("refill") == 2
    assert told.events[-1][1]["report"].marked == 5
    evictor.close()
    assert eviction.marks_left(arena) == 8, "its marks stay"
    held.abort(), more.abort()


def test_one_is_elected_the_other_stands_by(arena):
    roots(arena)
    with kvshm.Arena.attach(arena.name, helper=False) as second:
        told = Told(), Told()
        one, other = Evictor(arena, "lru", tell=told[0]), Evictor(second, "lru", tell=told[1])
        one.step(), other.step(), other.step()
        assert (one.elected, other.elected) == (True, False)
        assert told[1].names == ["standing_by"]
        one.close()
        other.step()
        assert other.elected and told[1].names[1] == "elected"
        other.close()


def test_the_post_is_by_name(arena):
    assert eviction.elect(arena, "evictor") and eviction.elect(arena, "evictor")
    with kvshm.Arena.attach(arena.name, helper=False) as second:
        assert not eviction.elect(second, "evictor") and eviction.elect(second, "mover")
        eviction.resign(arena, "evictor")
        assert eviction.elect(second, "evictor")
    assert eviction.elect(arena, "mover")
    with pytest.raises(kvshm.InvalidArgument, match="controller"):
        eviction.elect(arena, "king")


class Moody:
    """A policy that does as it is told."""

    def __init__(self) -> None:
        self.mood: Any = None

    def __call__(self, table: Any, now: int) -> Any:
        if isinstance(self.mood, Exception):
            raise self.mood
        return eviction.age(table, now).astype(float) if self.mood is None else self.mood


@pytest.mark.parametrize(("mood", "event"), [
    (ZeroDivisionError("mine"), "policy_failed"), (np.full(16, np.nan), "policy_nan"),
    (np.full(16, -1.0), "policy_empty"), (np.full(3, 1.0), "policy_failed"),
    ("nonsense", "policy_failed"), (None, "")])
def test_a_policy_that_fails_harms_nothing_and_is_told_once(arena, mood, event):
    there = roots(arena)
    eviction.set_policy(arena, "lru")
    policy, told = Moody(), Told()
    policy.mood = mood
    evictor = Evictor(arena, policy, 4, 4, tell=told)
    pauses = [evictor.step() for _ in range(4)]
    assert told.names.count(event) == (1 if event else 0)
    if event:
        assert eviction.marks_left(arena) == 0 and pauses[-1] > pauses[0] >= 0.05
    assert goes_next(arena, 1) == [there[0]]  # by the arena's own policy, or the marks
    policy.mood = None
    held = [arena.allocate(1) for _ in range(5)]  # less than low is free
    evictor.step()
    assert eviction.marks_left(arena) >= 3
    if event == "policy_failed":
        assert told.names[-1] == "policy_works"
        policy.mood = ZeroDivisionError("again")
        held += [arena.allocate(1) for _ in range(4)]
        evictor.step()
        assert told.names.count("policy_failed") == 2, "after it had worked it is told anew"
    evictor.close()
    assert arena.is_valid() == []


def test_troubles_are_logged_once(arena, caplog):
    roots(arena)
    policy = Moody()
    policy.mood = ZeroDivisionError("mine")
    evictor = Evictor(arena, policy, 4, 4)
    for _ in range(3):
        evictor.step()
    assert caplog.text.count("the arena's own goes on") == 1
    assert caplog.text.count("ZeroDivisionError: mine") == 1
    evictor.close()


def test_a_thread_of_its_own(arena, caplog):
    there = roots(arena)
    caplog.set_level(logging.INFO, logger="kvshm")
    evictor = Evictor(arena, youngest, 4, 8)
    evictor.start()
    end = time.monotonic() + 10
    while eviction.marks_left(arena) < 8 and time.monotonic() < end:
        time.sleep(0.01)
    with pytest.raises(kvshm.InvalidArgument):
        evictor.start()
    evictor.close()
    assert goes_next(arena, 1) == [there[-1]]
    assert "elected" in caplog.text
    assert not any("evictor" in thread.name for thread in threading.enumerate())


def test_it_ends_with_its_arena(arena):
    roots(arena)
    evictor = Evictor(arena, "lru", 4, 8)
    kvshm.remove(arena.name, force=True)
    with pytest.raises(kvshm.ArenaReplaced):
        evictor.step()


def test_pauses_keep_to_the_share(arena):
    """What a refill costs at 1e6 blocks is bounded by what is slept after it."""
    roots(arena)

    def slow(table: Any, now: int) -> Any:
        time.sleep(0.05)
        return eviction.age(table, now).astype(float)

    evictor = Evictor(arena, slow, 4, 8, share=0.1)
    assert 0.45 <= evictor.step() < 5
    evictor.close()
    with pytest.raises(kvshm.InvalidArgument):
        Evictor(arena, "lru", share=0)


def test_watermarks(make_arena, arena):
    assert watermarks(arena, 0.25, 0.5) == (4, 8)
    assert watermarks(arena, 0.02, 0.05) == (1, 1)  # a block at least
    assert watermarks(arena, 3, 16) == (3, 16)
    large = make_arena(blocks=100_000, block_bytes=64)
    assert watermarks(large, 0.02, 0.05) == (2000, 5000)
    assert watermarks(large, 0.2, 0.5) == (3276, eviction.MOST_MARKS)  # all that the ring holds
    for low, high in ((5, 4), (-1, 4), (0, 17), (0.5, 1.5), (float("nan"), 1)):
        with pytest.raises(kvshm.InvalidArgument, match="watermarks"):
            Evictor(arena, "lru", low, high)


def test_policies_by_name(tmp_path, monkeypatch):
    (tmp_path / "mine_kv.py").write_text(
        "import numpy as np\n"
        "def plain(table, now): return np.zeros(len(table))\n"
        "class Made:\n    def __call__(self, table, now): return np.ones(len(table))\n"
        "class Group:\n    inner = staticmethod(plain)\n"
        "number = 3\n")
    (tmp_path / "broken_kv.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_policy("lru") == "lru"
    for name in ("mine_kv:plain", "mine_kv:Made", "mine_kv:Group.inner"):
        assert len(load_policy(name)(range(4), 0)) == 4  # type: ignore[operator]
    for name, words in (
            ("optimal", "expected package.module:Name"), (":x", "expected"),
            ("mine_kv:", "expected"), ("mine_kv:nothing", "no attribute 'nothing'"),
            ("no_such_kv:x", "no module 'no_such_kv'"), ("mine_kv:number", "is int"),
            ("no_such_kv.deep:x", "no module 'no_such_kv'")):
        with pytest.raises(kvshm.InvalidArgument, match=words):
            load_policy(name)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        load_policy("broken_kv:x")
    with pytest.raises(TypeError, match="make_scorer"):
        eviction.Scorer()
