# SPDX-License-Identifier: Apache-2.0
"""kvshm.device: a pool's blocks, onboard and offload in every layout, and semantics 43-45."""
import errno
from itertools import product

import kvshm
import numpy as np
import pytest
from kvshm import device
from kvshm.device import nodes
from kvshm.records import NONE, Presence
from support.arenas import keys, store
from support.kv_tensors import bytes_of, random_bytes

torch = pytest.importorskip("torch", reason="pools are of torch's tensors")
pytestmark = pytest.mark.torch

SMALL = device.Layout(layers=3, tokens=4, heads=2, dim=32)


def every_layout(**sizes):
    for order, kv, heads_at in product(("layers", "contiguous", "blocks"),
                                       ("joined", "split", "latent"),
                                       ("token", "block", "outermost")):
        try:
            yield device.Layout(**{**sizes, "heads": 1 if kv == "latent" else sizes["heads"]},
                                order=order, kv=kv, heads_at=heads_at)
        except kvshm.InvalidArgument:
            assert order == "blocks"


LAYOUTS = list(every_layout(layers=3, tokens=16, heads=4, dim=32))


@pytest.fixture
def pool(make_arena):
    arena = make_arena(blocks=16, block_bytes=SMALL.bytes_per_block)
    with device.Pool.of(arena, SMALL, 8) as pool:
        fill_all(pool)
        yield pool


def fill_all(pool, seed=1):
    rooms = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in pool.tensors.values()}
    for number, room in enumerate(rooms.values()):
        random_bytes(torch.tensor([], dtype=torch.uint8).set_(room), seed + number)


def block_bytes(pool, block):
    """By torch's own indexing, layer by layer."""
    return [bytes_of(t, int(block)) for t in pool.tensors.values()]


def counts(pool):
    s = pool.status()
    assert s.free + s.inactive + s.in_use == s.blocks == len(pool)
    return s.free, s.inactive, s.in_use


# Layouts

def test_all_that_make_sense_are_there():
    assert len(LAYOUTS) == 22


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: f"{x.order}-{x.kv}-{x.heads_at}")
def test_each_layout_there_and_back(make_arena, layout):
    arena = make_arena(blocks=16, block_bytes=layout.bytes_per_block)
    with device.Pool.of(arena, layout, 20) as pool:
        assert pool.pages.layout_text == layout.text
        assert pool.pages.slice_bytes == layout.bytes_per_block
        assert {n for _, _, n, _ in pool.pages.runs} == {layout.pieces[1]}
        assert len(pool.pages.runs) == layout.pieces[0]
        fill_all(pool)
        ids = pool.allocate(6)
        was = [block_bytes(pool, i) for i in ids]
        stored = pool.offload(ids, keys(6))
        assert stored.done() and stored.codes.tolist() == [0] * 6
        fill_all(pool, seed=9)
        rest = {i: block_bytes(pool, i) for i in range(20)}
        with arena.match(keys(6)) as hit:
            loaded = pool.onboard(hit, keys(6))
        assert loaded.codes.tolist() == [0] * 6 and loaded.good == 6
        assert [block_bytes(pool, i) for i in loaded.ids] == was
        for i, wanted in rest.items():
            if i not in loaded.ids:
                assert block_bytes(pool, i) == wanted, "a block beside them has changed"


def test_equal_texts_mean_equal_slices(make_arena):
    """Engines of different layouts share an arena where a slice means the same, and only there."""
    one, other = (device.Layout(3, 4, 2, 32, order=order) for order in ("layers", "blocks"))
    assert one.text == other.text
    assert len({x.text for x in LAYOUTS if x.kv == "joined"}) == 3
    arena = make_arena(blocks=8, block_bytes=one.bytes_per_block)
    with device.Pool.of(arena, one, 4) as a, device.Pool.of(arena, other, 4) as b:
        fill_all(a)
        ids = a.allocate(2)
        a.offload(ids, keys(2))
        with arena.match(keys(2)) as hit:
            got = b.onboard(hit, keys(2)).ids
        assert [block_bytes(a, i) for i in ids] == [block_bytes(b, i) for i in got]


@pytest.mark.parametrize("wrong", [
    {"layers": 0}, {"dim": 1.5}, {"dtype": "complex"}, {"order": "x"}, {"kv": "latent"},
    {"order": "blocks", "kv": "split"}, {"order": "blocks", "heads_at": "outermost"}])
def test_layouts_that_cannot_be(wrong):
    with pytest.raises(kvshm.InvalidArgument):
        device.Layout(**{"layers": 2, "tokens": 4, "heads": 2, "dim": 8, **wrong})


def test_large_blocks_of_short_runs(make_arena):
    """What is streamed past the caches: pieces of 64 bytes, and of lengths that fill no line."""
    for dim, tokens in ((32, 1), (20, 3)):
        layout = device.Layout(layers=16, tokens=tokens, heads=128, dim=dim, order="contiguous",
                               kv="split", heads_at="outermost")
        arena = make_arena(blocks=8, block_bytes=layout.bytes_per_block)
        with device.Pool.of(arena, layout, 9) as pool:
            fill_all(pool)
            ids = pool.allocate(3)
            was = [block_bytes(pool, i) for i in ids]
            pool.offload(ids, keys(3))
            fill_all(pool, seed=5)
            rest = {i: block_bytes(pool, i) for i in range(9)}
            with arena.match(keys(3)) as hit:
                got = pool.onboard(hit, keys(3)).ids
            assert [block_bytes(pool, i) for i in got] == was
            assert all(block_bytes(pool, i) == rest[i] for i in rest if i not in got)


# Blocks

def test_blocks_are_free_in_use_or_inactive(pool):
    assert counts(pool) == (8, 0, 0)
    ids = pool.allocate(5)
    assert sorted(set(ids)) == sorted(ids) and counts(pool) == (3, 0, 5)
    assert pool.register(ids[:3], keys(3)) == 3
    pool.hold(ids[:1])
    pool.release(ids)
    assert counts(pool) == (5, 2, 1)
    with pytest.raises(kvshm.Misuse):
        pool.release(ids[1:2])
    pool.release(ids[:1])
    assert counts(pool) == (5, 3, 0)
    assert pool.match(keys(4)).tolist() == ids[:3].tolist()
    assert counts(pool) == (5, 0, 3)


def test_the_least_recently_used_goes_first(pool):
    ids = pool.allocate(8)
    pool.register(ids, keys(8))
    pool.release(ids)
    pool.release(pool.match(keys(8)[:2]))  # used once more
    pool.allocate(3)
    assert [len(pool.match([key])) for key in keys(8)] == [1, 1, 0, 0, 0, 1, 1, 1]


def test_all_or_none(pool):
    held = pool.allocate(6)
    with pytest.raises(kvshm.NoSpace):
        pool.allocate(3)
    assert counts(pool) == (2, 0, 6)
    with pytest.raises(kvshm.TooLarge):
        pool.allocate(9)
    pool.release(held)
    assert len(pool.allocate(8)) == 8


def test_a_second_block_of_a_key_stays_without(pool):
    a, b = pool.allocate(2)
    assert pool.register([a], keys(1)) == 1 and pool.register([b], keys(1)) == 0
    pool.release([a, b])
    assert counts(pool) == (7, 1, 0)
    with pytest.raises(kvshm.Misuse):
        (c,) = pool.allocate(1)
        pool.register([c], keys(1, 7))
        pool.register([c], keys(1, 8))


def test_reserved_blocks_are_not_given_out(make_arena):
    arena = make_arena(blocks=4, block_bytes=SMALL.bytes_per_block)
    with device.Pool(arena, SMALL.allocate(8), 8, reserved=[0]) as pool:
        assert 0 not in pool.allocate(7).tolist() and len(pool) == 7


def test_forget(pool):
    ids = pool.allocate(4)
    pool.register(ids, keys(4))
    pool.release(ids[1:])
    assert pool.forget(keys(2)) == 2 and counts(pool) == (5, 2, 1)
    assert pool.forget() == 2 and counts(pool) == (7, 0, 1)
    assert len(pool.match(keys(4))) == 0


# Onboard

def test_what_the_pool_has_is_not_copied(pool):
    with store(pool.arena, keys(4)) as lease:
        first = pool.onboard(lease, keys(4)[:2])
        mine = first.ids.copy()
        before = [block_bytes(pool, i) for i in mine]
        pool.tensors["layers.0"][int(mine[0])].zero_()  # the mark that no copy was made
        again = pool.onboard(lease, keys(4))
        assert again.codes.tolist() == [device.PRESENT] * 2 + [0, 0]
        assert again.ids[:2].tolist() == mine.tolist()
        assert not bool(pool.tensors["layers.0"][int(mine[0])].any())
        assert block_bytes(pool, mine[1]) == before[1]
    assert (pool.status().loaded, pool.status().present) == (4, 2)
    pool.release(first.ids)
    assert counts(pool) == (4, 0, 4)
    pool.release(again.ids)
    assert counts(pool) == (4, 4, 0)


def test_44_a_full_pool_takes_nothing(pool):
    """The target is full: skipped, said so, and neither side has changed."""
    pool.allocate(7)
    with store(pool.arena, keys(3)) as lease:
        with pytest.raises(kvshm.NoSpace):
            pool.onboard(lease, keys(3))
        assert counts(pool) == (1, 0, 7) and len(pool.match(keys(3))) == 0
        assert [pool.arena.block(h.id).holders for h in lease.handles] == [1] * 3
    assert pool.arena.is_valid() == []


def test_44_a_full_pool_lets_go_of_what_it_had(pool):
    pool.allocate(6)
    with store(pool.arena, keys(3)) as lease:
        pool.release(pool.onboard(lease, keys(1)).ids)
        assert counts(pool) == (1, 1, 6)
        with pytest.raises(kvshm.NoSpace):
            pool.onboard(lease, keys(3))
    assert counts(pool) == (1, 1, 6) and len(pool.match(keys(3))) == 1


def test_44_a_hit_is_not_what_makes_room(pool):
    """The pool is full of inactive blocks; those that are wanted themselves stay."""
    with store(pool.arena, keys(8)) as lease:
        pool.release(pool.onboard(lease, keys(8)).ids)
    more = np.concatenate([keys(8)[:2], keys(6, 50)])
    with store(pool.arena, keys(6, 50)):
        with pool.arena.match_scattered(more) as lease:
            got = pool.onboard(lease, more)
    assert got.codes.tolist() == [device.PRESENT] * 2 + [0] * 6
    assert len(set(got.ids)) == 8 and pool.match(more).tolist() == got.ids.tolist()


def test_44_a_full_arena_takes_nothing(make_arena):
    arena = make_arena(blocks=4, block_bytes=SMALL.bytes_per_block)
    with device.Pool.of(arena, SMALL, 8) as pool, store(arena, keys(3, 70)):
        fill_all(pool)
        ids = pool.allocate(2)
        was = [block_bytes(pool, i) for i in ids]
        stored = pool.offload(ids, keys(2))
        assert stored.codes.tolist() == [-errno.ENOSPC] * 2 and stored.reason
        assert stored.failed == [0, 1] and pool.status().failed == 2
        assert [block_bytes(pool, i) for i in ids] == was and counts(pool) == (6, 0, 2)
        assert not arena.presence(keys(2)).any() and arena.is_valid() == []


def test_44_what_the_arena_has_is_not_copied(pool):
    ids = pool.allocate(4)
    assert pool.offload(ids, keys(4)).copied == 4
    before = pool.arena.stats().copy_in_bytes_total
    again = pool.offload(ids, keys(4))
    assert again.codes.tolist() == [device.PRESENT] * 4
    assert pool.arena.stats().copy_in_bytes_total == before


def test_44_what_another_fills_is_not_copied(pool):
    ids = pool.allocate(2)
    with pool.arena.allocate(1, keys=keys(2)[:1]):
        got = pool.offload(ids, keys(2))
        assert got.codes.tolist() == [device.PRESENT, 0]


def test_45_a_load_that_fails_leaves_no_key(pool):
    """A miss in the middle: its block is free again, its key is not found, the caller sees it."""
    wanted = keys(3)
    with store(pool.arena, wanted[:1]), store(pool.arena, wanted[2:]):
        with pool.arena.match_scattered(wanted) as lease:
            got = pool.onboard(lease, wanted)
    assert got.codes[0] == 0 and got.codes[1] < 0 and got.codes[2] == 0
    assert got.ids[1] == NONE and got.failed == [1] and got.good == 1 and got.reason
    assert counts(pool) == (6, 0, 2) and len(pool.match(wanted)) == 1
    pool.release(got.ids)  # NONE is passed over


def test_45_a_store_that_fails_is_never_found(pool, monkeypatch):
    ids = pool.allocate(3)

    class Failing:  # the copy of the second block is refused
        def __init__(self, pages):
            self._pages = pages

        def __getattr__(self, name):
            return getattr(self._pages, name)

        def store(self, fill, rows, **more):
            fill.begin(1)  # so that its part was begun before
            return self._pages.store(fill, rows, **more)

    monkeypatch.setattr(pool, "pages", Failing(pool.pages))
    got = pool.offload(ids, keys(3))
    assert got.codes[0] == 0 and got.codes[1] < 0 and got.codes[2] == 0 and got.failed == [1]
    assert pool.arena.presence(keys(3)).tolist() == [Presence.G2, 0, Presence.G2]
    assert pool.arena.stats().blocks_filling == 0 and pool.arena.is_valid() == []
    assert counts(pool) == (5, 0, 3)


# Offload

def test_parents_are_known_wherever_they_were_stored(pool):
    """The arena has the first and the third of four; the others are put beside them."""
    ids = pool.allocate(4)
    names = keys(4)
    with store(pool.arena, names[:1]), pool.arena.allocate(1, keys=names[2:3]) as third:
        got = pool.offload(ids, names)
        assert got.codes.tolist() == [device.PRESENT, 0, device.PRESENT, 0]
        third.abort()
    with pool.arena.match(names) as hit:
        first, second = hit.handles[:2]
        assert pool.arena.block(second.id).parent == first.id


def test_after_and_options_go_to_the_arena(pool):
    ids = pool.allocate(2)
    with store(pool.arena, keys(1)) as head:
        pool.offload(ids, keys(2, 30), after=head, priority=80)
        with pool.arena.match(keys(2, 30)) as hit:
            one = pool.arena.block(hit.handles[0].id)
            assert one.parent == head.handles[0].id and one.priority == 80


def test_only_blocks_in_use(pool):
    (block,) = pool.allocate(1)
    pool.release([block])
    for call in (pool.offload, pool.register):
        with pytest.raises(kvshm.Misuse):
            call([block], keys(1))
    with pytest.raises(kvshm.InvalidArgument):
        pool.offload(pool.allocate(2), keys(1))
    with store(pool.arena, keys(1)) as lease, pytest.raises(kvshm.InvalidArgument):
        pool.onboard(lease, keys(2))


def test_blocks_that_are_too_small(make_arena):
    arena = make_arena(blocks=4, block_bytes=SMALL.bytes_per_block - 64)
    with pytest.raises(kvshm.InvalidArgument, match="does not fit"):
        device.Pool.of(arena, SMALL, 4)


def test_two_parts_of_a_block(make_arena):
    """Two ranks of one engine: a block is found when both have stored their part."""
    arena = make_arena(blocks=4, block_bytes=2 * SMALL.bytes_per_block)
    ranks = [device.Pool.of(arena, SMALL, 4, part=part) for part in (0, 1)]
    for number, pool in enumerate(ranks):
        fill_all(pool, seed=number)
    with arena.allocate(2, keys=keys(2), parts=2) as fill:
        for part, pool in enumerate(ranks):
            member = arena.join(fill.handles)
            assert pool.pages.store(member, pool.allocate(2), part=part).tolist() == [0, 0]
            assert pool.pages.finish(member, part=part).tolist() == [1 - part] * 2
    with arena.match(keys(2)) as hit:
        for pool in ranks:
            assert pool.onboard(hit, keys(2)).good == 2


def test_closed(pool):
    pool.close()
    pool.close()
    with pytest.raises(kvshm.Closed):
        pool.allocate(1)


# NUMA, as measured

def test_the_node_is_measured(pool):
    status = pool.status()
    assert status.device == "cpu" and pool.node in (0, None, 1, 2, 3)
    assert status.node == pool.node
    if status.node is not None and status.arena_node == status.node:
        assert status.note == ""


def test_another_node_is_told(pool, monkeypatch):
    monkeypatch.setattr(pool, "node", 1)
    info = pool.arena.info()._replace(numa=0)
    monkeypatch.setattr(pool, "arena", Front(pool.arena, info))
    assert "NUMA node 0" in pool.status().note and "node 1" in pool.status().note
    pool.arena._info = info._replace(numa=-2)
    assert "interleaved" in pool.status().note
    monkeypatch.setattr(pool, "node", None)
    assert pool.status().note == ""


class Front:
    def __init__(self, arena, info):
        self._arena, self._info = arena, info

    def __getattr__(self, name):
        return getattr(self._arena, name)

    def info(self):
        return self._info


def test_nodes_from_what_the_kernel_says(tmp_path):
    maps = tmp_path / "numa_maps"
    maps.write_text("1000 default anon=3 dirty=3 N0=1 N1=2 kernelpagesize_kB=4\n"
                    "9000 default file=/x N3=7\n")
    assert nodes.node_of_memory(0x1fff, str(maps)) == 1
    assert nodes.node_of_memory(0x9000, str(maps)) == 3
    assert nodes.node_of_memory(0x10, str(maps)) is None
    assert nodes.node_of_memory(0x1000, str(tmp_path / "none")) is None
    card = tmp_path / "0000:3b:00.0"
    card.mkdir()

    class torch_of:
        class cuda:
            @staticmethod
            def get_device_properties(_):
                return type("P", (), dict(pci_domain_id=0, pci_bus_id=0x3b, pci_device_id=0))

    for text, node in (("1\n", 1), ("-1\n", None), ("x", None)):
        (card / "numa_node").write_text(text)
        assert nodes.node_of_device(torch_of, "cuda:0", str(tmp_path)) == node
