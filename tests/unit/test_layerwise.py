# SPDX-License-Identifier: Apache-2.0
"""KV by layer groups: the keys of the parts, and loads that give no block a part of which is not
there."""
from __future__ import annotations

import hashlib

import kvshm
import numpy as np
import pytest
from kvshm.ahead import Ahead
from kvshm.layerwise import LayerKeys, LayerwiseLoad
from support.arenas import BLOCK, content, eventually, keys, store

GROUPS, BLOCKS = 3, 5
IDENT = kvshm.Identity(model="layers", weights="w", layout="LCHTD/3", block_tokens=4)
OWN = IDENT.keys(range(4 * BLOCKS))
EVERY = LayerKeys(IDENT, GROUPS).every(OWN)


@pytest.fixture
def arena(make_arena, tmp_path):
    made = make_arena(64, tier=tmp_path / "tier", tier_size="1MiB",
                      tier_options={"engine": "threads"})
    assert eventually(lambda: made.tier.state == kvshm.TierState.OK)
    return made


def on_disk_alone(arena, wanted):
    store(arena, wanted).release()
    assert arena.tier_drain(10)
    assert arena.evict(wanted) == len(wanted)


def damage(path, key):
    data = path.read_bytes()
    at = data.find(content(key))
    assert at >= 0
    with open(path, "r+b") as file:
        file.seek(at + 7)
        file.write(bytes([data[at + 7] ^ 255]))


def quiet(arena):
    """Loads that nobody waits for any more end by themselves."""
    def still():
        stats = arena.stats()
        return stats.blocks_held == stats.blocks_filling == 0
    assert eventually(still) and not arena.is_valid()


# ---- keys ----------------------------------------------------------------------------------------

def test_a_part_is_the_block_bound_to_its_group():
    """docs/keys.md: keys from hashes, the block's key as the hash, KV group as the extra."""
    for group in range(GROUPS):
        item = (4).to_bytes(4, "little") + (4).to_bytes(4, "little") + group.to_bytes(4, "little")
        extra = hashlib.blake2b(item, digest_size=16, key=IDENT.key,
                                person=b"kvshm.v1.extra".ljust(16, b"\0")).digest()
        assert IDENT.extra_digest(extra={"group": group.to_bytes(4, "little")}) == extra
        assert np.array_equal(EVERY[group], IDENT.keys_from_hashes(
            OWN, extra=[(4, group.to_bytes(4, "little"))]))


def test_no_two_parts_have_one_key():
    every = {bytes(key) for of_group in EVERY for key in of_group} | {bytes(key) for key in OWN}
    assert len(every) == (GROUPS + 1) * BLOCKS


def test_one_group_is_the_block_itself():
    (same,) = LayerKeys(IDENT, 1).every([bytes(key) for key in OWN])
    assert np.array_equal(same, OWN)


@pytest.mark.parametrize("groups, group", [(0, 0), (-1, 0), (2, 2), (2, -1)])
def test_what_is_no_group(groups, group):
    with pytest.raises(kvshm.InvalidArgument):
        LayerKeys(IDENT, groups).of(OWN, group)


def test_an_empty_prompt():
    assert [own.shape for own in LayerKeys(IDENT, 2).every([])] == [(0, 16)] * 2


# ---- loads ---------------------------------------------------------------------------------------

def test_groups_come_one_by_one_and_right(arena):
    for own in EVERY:
        on_disk_alone(arena, own)
    with LayerwiseLoad(arena, EVERY) as load:
        assert load.blocks == len(load) == BLOCKS and load.groups == GROUPS
        for group, own in enumerate(EVERY):
            assert load.wait(group, 10) == BLOCKS
            for i, key in enumerate(own):
                assert bytes(load.view(group, i)[:]) == content(key)
                copied = bytearray(BLOCK)
                load.copy_out(group, i, copied)
                assert bytes(copied) == content(key)
        assert load.under_way == load.failed == 0
    quiet(arena)


def test_only_blocks_that_have_every_part(arena):
    """The others are not even loaded."""
    on_disk_alone(arena, EVERY[0])
    on_disk_alone(arena, EVERY[1][:2])
    store(arena, EVERY[2][:4]).release()
    with LayerwiseLoad(arena, EVERY) as load:
        assert load.blocks == 2
        assert [load.wait(group, 10) for group in range(GROUPS)] == [2, 2, 2]
        assert [len(lease) for lease in load.leases] == [2, 2, 2]
        with pytest.raises(IndexError):
            load.view(0, 2)
    assert arena.presence(EVERY[0][2:]).tolist() == [int(kvshm.Presence.G3)] * 3
    quiet(arena)


def test_nothing_is_there(arena):
    on_disk_alone(arena, EVERY[0])
    with LayerwiseLoad(arena, EVERY) as load:
        assert load.blocks == 0 and load.wait(0, 1) == 0
    quiet(arena)


def test_a_damaged_part_ends_the_prefix_before_its_block(arena, tmp_path):
    for own in EVERY:
        on_disk_alone(arena, own)
    damage(tmp_path / "tier", EVERY[1][3])
    with LayerwiseLoad(arena, EVERY) as load:
        assert load.wait(0, 10) == BLOCKS  # what it promised so far
        assert load.wait(1, 10) == 3
        assert load.wait(2, 10) == 3 and load.wait(0, 10) == 3 and load.failed == 1
        with pytest.raises(IndexError):
            load.view(0, 3)
        assert bytes(load.view(2, 2)[:]) == content(EVERY[2][2])
    quiet(arena)


def test_what_does_not_come_in_time_is_a_miss(arena):
    for own in EVERY:
        on_disk_alone(arena, own)
    with LayerwiseLoad(arena, EVERY) as load:
        assert 0 <= load.wait(2, 0) <= BLOCKS
    quiet(arena)


def test_after_release(arena):
    for own in EVERY:
        store(arena, own).release()
    load = LayerwiseLoad(arena, EVERY)
    assert load.wait(0, 0) == BLOCKS
    view = load.view(0, 0)
    load.release()
    load.release()
    assert load.under_way == 0 and bytes(view[:]) == content(EVERY[0][0])
    with pytest.raises(kvshm.Closed):
        load.wait(0, 1)
    view.release()
    quiet(arena)


def test_groups_of_unequal_length_are_refused(arena):
    for wrong in ([], [EVERY[0], EVERY[1][:2]]):
        with pytest.raises(kvshm.InvalidArgument):
            LayerwiseLoad(arena, wrong)


# ---- ahead of a request's turn -------------------------------------------------------------------

LINE = [keys(4, seed) for seed in (21, 22, 23)]


def in_memory(arena):
    return [int((arena.presence(own) & kvshm.Presence.G2 != 0).sum()) for own in LINE]


def test_all_in_line_are_asked_for_on_arrival(arena):
    for own in LINE:
        on_disk_alone(arena, own)
    ahead = Ahead(arena)
    assert [ahead.arrived(i, [own]) for i, own in enumerate(LINE)] == [4, 4, 4]
    assert eventually(lambda: in_memory(arena) == [4, 4, 4])
    for i in range(3):
        ahead.begun(i)
    assert ahead.queued == 12
    quiet(arena)


def test_no_more_than_the_limit_ahead(arena):
    for own in LINE:
        on_disk_alone(arena, own)
    ahead = Ahead(arena, 6)
    assert [ahead.arrived(i, [own]) for i, own in enumerate(LINE)] == [4, 2, 0]
    assert eventually(lambda: in_memory(arena) == [4, 2, 0])
    assert ahead.begun(0) == 4  # two of the second, two of the third
    assert eventually(lambda: in_memory(arena) == [4, 4, 2])
    assert ahead.begun(2) == 0 and ahead.begun(1) == 0 and ahead.begun("nobody") == 0
    quiet(arena)


def test_the_parts_of_a_block_go_together(arena):
    for own in EVERY:
        on_disk_alone(arena, own)
    ahead = Ahead(arena, 2)
    assert ahead.arrived("one", EVERY) == 2 * GROUPS
    assert eventually(lambda: all((arena.presence(own) & kvshm.Presence.G2 != 0).sum() == 2
                                  for own in EVERY))
    ahead.begun("one")
    quiet(arena)


def test_what_found_no_room_in_the_queue_is_asked_for_later(arena_name, tmp_path):
    """By a process without a tier, which sees nothing of the disk; while nobody moves."""
    with kvshm.Arena.open(arena_name, blocks=8, block_bytes=4096) as arena:
        ahead = Ahead(arena)
        assert ahead.arrived("one", [keys(1500, 31)]) == 1500
        assert ahead.arrived("two", [keys(1000, 32)]) == 548  # the queue has 2048 places
        assert ahead.arrived("three", [keys(10, 33)]) == 0 and ahead.begun("one") == 0
        with kvshm.Arena.open(arena_name, blocks=8, block_bytes=4096, tier=tmp_path / "new",
                              tier_size="1MiB"):
            assert eventually(lambda: ahead.begun("nobody") == 0 and ahead.queued == 2510)


def test_behind_a_miss_nothing_is_asked_for(arena):
    on_disk_alone(arena, LINE[0])
    ahead = Ahead(arena)
    assert ahead.arrived("one", [np.concatenate([LINE[0][:2], keys(2, 34), LINE[0][2:]])]) == 2
    assert eventually(lambda: in_memory(arena)[0] == 2)
    quiet(arena)
