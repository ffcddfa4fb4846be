# SPDX-License-Identifier: Apache-2.0
"""S92: `adaptive` keeps what is used again from a scan, the first one of a new arena too, and
follows when the hot set changes. The README says what does not hold."""
import kvshm
import numpy as np
import pytest
from kvshm.eviction import adaptive, set_policy
from kvshm.eviction.serving import serve
from support.oracle import raw_keys

BLOCKS, HOT, CHAIN = 4096, 410, 8
ACCESSES = 2048  # between two steps of the controller, as kvshm replay has it


class Load:
    """Requests of CHAIN blocks, served from an arena; the controller steps with the accesses."""

    def __init__(self, arena):
        self.arena, self.left, self.scans = arena, ACCESSES, 0

    def use(self, keys):
        """The share of these keys that was there."""
        hits = 0
        for first in range(0, len(keys), CHAIN):
            part = np.ascontiguousarray(keys[first:first + CHAIN])
            out = np.zeros(1, np.int32)
            serve(self.arena, part, np.array([0, len(part)], np.int64), out)
            hits += int(out[0])
            self.left -= len(part)
            if self.left <= 0:
                adaptive.step(self.arena)
                self.left = ACCESSES
        return hits / len(keys)

    def scan(self, capacities):
        self.scans += 1
        self.use(raw_keys(self.scans * 1_000_000, capacities * BLOCKS))

    def present(self, keys):
        """Touches nothing."""
        return float((self.arena.presence(keys) != 0).mean())


@pytest.fixture
def load(arena_name):
    with kvshm.Arena.create(arena_name, blocks=BLOCKS, block_bytes=0, pin="off",
                            helper=False) as arena:
        yield Load(arena)
        assert arena.is_valid() == []


def scanned(load):
    """A hot set, used evenly, and a first scan after it."""
    hot = raw_keys(0, HOT)
    for _ in range(10):
        load.use(hot)
    load.scan(10)
    return hot


def learnt(load):
    """The same, and the hot set in use again."""
    hot = scanned(load)
    for _ in range(6):
        load.use(hot)
    return hot


def test_the_first_scan_of_a_new_arena_leaves_the_hot_set(load):
    hot = scanned(load)
    assert load.present(hot) >= 0.9
    assert load.use(hot) >= 0.9


def test_age_alone_does_not(load):
    """So the test above can fail."""
    set_policy(load.arena, "lru")
    hot = scanned(load)
    assert load.present(hot) == 0


def test_cold_scans_leave_the_hot_set(load):
    hot = learnt(load)
    for _ in range(3):
        load.scan(10)
        assert load.present(hot) >= 0.9
        assert load.use(hot) >= 0.9


def test_another_hot_set(load):
    """Two passes over it, and a scan leaves it."""
    learnt(load)
    new = raw_keys(500_000, HOT)
    assert load.use(new) == 0
    assert load.use(new) >= 0.9
    load.scan(10)
    assert load.present(new) >= 0.9
    assert load.use(new) >= 0.9


def test_another_hot_set_among_cold_requests(load):
    """As many cold blocks as the arena has come between: the third pass finds it."""
    learnt(load)
    new = raw_keys(500_000, HOT)
    for _ in range(2):
        load.use(new)
        load.scan(1)
    assert load.use(new) >= 0.8


@pytest.mark.parametrize("policy", ["s3fifo", "multi_lru"])
def test_policies_that_need_no_lesson(load, policy):
    set_policy(load.arena, policy)
    hot = scanned(load)
    assert load.present(hot) >= 0.9
