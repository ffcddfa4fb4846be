# SPDX-License-Identifier: Apache-2.0
"""S76: an engine's KV tensors in every layout, there and back byte for byte; what is inconsistent
is refused by the name of its layer."""
from concurrent.futures import ThreadPoolExecutor

import kvshm
import numpy as np
import pytest
from kvshm import paged
from support.arenas import content, keys, store
from support.kv_tensors import ORDERS, Memory, bytes_of, in_order, random_bytes

torch = pytest.importorskip("torch", reason="the layouts are torch's")
pytestmark = pytest.mark.torch

SIZES = {"L": 3, "B": 10, "H": 4, "N": 16, "C": 32}
ROWS = [7, 0, 9, 4]
BACK = [1, 7, 2, 8]


def there_and_back(make_arena, tensors, blocks=10, ratio=1, seed=7):
    """Store ROWS, spoil the tensors, load into BACK; every other byte stays as it is."""
    table = paged.runs_of(tensors, blocks, ratio)
    arena = make_arena(block_bytes=table.slice_bytes)
    wanted = {name: [bytes_of(t, row, ratio) for row in ROWS] for name, t in tensors.items()}
    with arena.allocate(len(ROWS), keys=keys(len(ROWS))) as fill:
        assert table.store(fill, ROWS).tolist() == [0] * len(ROWS)
        assert table.finish(fill).tolist() == [0] * len(ROWS)
        assert not fill.active
    allocations = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors.values()}
    whole = [torch.tensor([], dtype=torch.uint8).set_(s) for s in allocations.values()]
    for i, flat in enumerate(whole):
        random_bytes(flat, seed + i)
    marks = [flat.clone() for flat in whole]
    with arena.match(keys(len(ROWS))) as hit:
        assert len(hit) == len(ROWS)
        assert table.load(hit, BACK).tolist() == [0] * len(ROWS)
    for name, t in tensors.items():
        assert [bytes_of(t, row, ratio) for row in BACK] == wanted[name], name
    # Put what is beside those rows back from the copy: then nothing differs.
    for t in tensors.values():
        for row in BACK:
            t[row * ratio:(row + 1) * ratio].zero_()
    for flat, mark in zip(whole, marks, strict=True):
        changed = (flat != mark) & (flat != 0)
        assert not changed.any(), "a byte beside the rows has changed"
    return table


@pytest.mark.parametrize("order", ORDERS)
def test_each_physical_order(make_arena, order):
    table = there_and_back(make_arena, in_order(order, **SIZES))
    runs = {"LBHNC": 3, "LBNHC": 3, "LHBNC": 12, "BLHNC": 1, "BLNHC": 1, "BHLNC": 1}
    assert len(table.runs) == runs[order]
    assert table.slice_bytes == 3 * 4 * 16 * 32 * 2
    assert sum(n for _, _, n, _ in table.runs) == table.slice_bytes


def test_contiguous_tensors_of_their_own(make_arena):
    """As an engine that allocates layer by layer; sizes differ from layer to layer."""
    tensors = {}
    for i, shape in enumerate([(10, 2, 16, 64), (10, 8, 16, 8), (10, 1, 3, 5)]):
        tensors[f"l{i}"] = torch.zeros(shape, dtype=torch.float16)
        random_bytes(tensors[f"l{i}"], i)
    table = there_and_back(make_arena, tensors)
    assert table.slice_bytes % 64 == 0
    assert sum(n for _, _, n, _ in table.runs) == 2 * (2 * 16 * 64 + 8 * 16 * 8 + 15)


def test_strided_with_room_between_blocks_heads_and_tokens(make_arena):
    base = torch.zeros(10 * 4096, dtype=torch.int16)
    tensors = {"a": base.as_strided((10, 3, 8, 20), (2000, 520, 40, 1), 3),
               "b": base.as_strided((10, 2, 8, 20), (2000, 200, 20, 1), 1600)}
    table = there_and_back(make_arena, tensors)
    assert len(table.runs) == 3 * 8 + 2


def test_keys_and_values_interleaved(make_arena):
    """K beside V of each token in the last dimension, and K and V as halves of a block's memory."""
    base = torch.zeros((10, 2, 16, 4, 32), dtype=torch.bfloat16)
    fused = torch.zeros((10, 4, 16, 64), dtype=torch.bfloat16)
    table = there_and_back(make_arena, {"fused": fused, "halves": base.permute(0, 1, 3, 2, 4)})
    assert len(table.runs) == 2


def test_keys_and_values_in_halves_of_the_tensor(make_arena):
    """The older [2, blocks, ...]: two runs a layer."""
    base = torch.zeros((2, 10, 16, 4, 32), dtype=torch.bfloat16)
    random_bytes(base, 3)
    assert len(there_and_back(make_arena, {"old": base.transpose(0, 1)}).runs) == 2


@pytest.mark.parametrize("order", ["LBHNC", "LHBNC", "BLNHC"])
def test_several_kernel_rows_a_block(make_arena, order):
    tensors = in_order(order, **(SIZES | {"B": 40}))
    table = there_and_back(make_arena, tensors, ratio=4)
    assert table.rows == 10 and table.slice_bytes == 4 * 3 * 4 * 16 * 32 * 2


def test_one_latent_head(make_arena):
    tensors = in_order("BLNHC", **(SIZES | {"H": 1, "C": 576}))
    assert len(there_and_back(make_arena, tensors).runs) == 1


def test_scales_inside_the_blocks(make_arena):
    """Bytes and their float scales in one allocation: block by block, 512 + 64 bytes."""
    raw = torch.zeros(10 * 576, dtype=torch.uint8)
    random_bytes(raw, 5)
    data = raw.as_strided((10, 1, 16, 32), (576, 512, 32, 1))
    scales = raw.view(torch.float32).as_strided((10, 1, 16, 1), (144, 16, 1, 1), 128)
    table = there_and_back(make_arena, {"data": data, "scales": scales})
    assert [(stride, n) for _, stride, n, _ in table.runs] == [(576, 576)]


def test_layers_that_share_a_tensor_count_once(make_arena):
    tensors = in_order("LBHNC", **SIZES)
    shared = {**tensors, "again": tensors["layers.1.attn"]}
    assert paged.runs_of(shared, 10).slice_bytes == paged.runs_of(tensors, 10).slice_bytes
    assert len(there_and_back(make_arena, shared).runs) == 3


def test_two_ranks_with_slices_of_one_block(make_arena):
    """Tensor-parallel workers: each joins, stores its part and leaves; the last one publishes."""
    scheduler = make_arena(block_bytes=2 * 12288)
    workers = [kvshm.Arena.attach(scheduler.name, pin="off") for _ in range(2)]
    ranks = [in_order(order, seed=i, **SIZES) for i, order in enumerate(["BLHNC", "LHBNC"])]
    tables = [paged.runs_of(rank, 10) for rank in ranks]
    wanted = [[bytes_of(t, row) for t in rank.values() for row in ROWS] for rank in ranks]
    with scheduler.allocate(4, keys=keys(4), parts=2) as fill:
        mine = [worker.join(fill.handles) for worker in workers]
        for part in (0, 1):
            assert tables[part].store(mine[part], ROWS[:1], part).tolist() == [0]
            assert tables[part].store(mine[part], ROWS[1:], part, first=1).tolist() == [0] * 3
        assert tables[0].finish(mine[0], 0).tolist() == [1] * 4
        assert len(scheduler.match(keys(4))) == 0
        assert tables[1].finish(mine[1], 1).tolist() == [0] * 4
        fill.publish().release()
    for part, worker in enumerate(workers):
        with worker.match(keys(4)) as hit:
            assert tables[part].load(hit, BACK, part).tolist() == [0] * 4
        assert [bytes_of(t, row) for t in ranks[part].values() for row in BACK] == wanted[part]
        worker.close()


def test_a_part_that_another_began_is_not_finished(arena):
    base = torch.zeros((10, 1, 4, 64), dtype=torch.uint8)
    table = paged.runs_of({"a": base}, 10)
    fill = arena.allocate(1, keys=keys(1))
    fill.begin(0)
    other = arena.join(fill.handles)
    (code,) = table.store(other, [3])
    assert code < 0
    assert table.finish(other).tolist() == [code]
    assert arena.block(int(fill.ids[0])).arrived == 0 and len(arena.match(keys(1))) == 0
    fill.abort()
    with pytest.raises(kvshm.Closed):
        table.finish(other)


def flat(value, n=10, size=64):
    """The table of n rows of `size` bytes, and the tensor."""
    base = torch.full((n, size), value, dtype=torch.uint8)
    return paged.runs_of({"a": base}, n), base


def test_what_a_fill_has_not_stored_is_not_finished(arena):
    """A part that another member is still writing must not arrive through one that never stored."""
    table, _ = flat(3)
    writer = arena.allocate(2, keys=keys(2))
    writer.begin(0)
    writer.begin(1)  # and writes, slowly
    idle = arena.join(writer.handles)
    assert (table.finish(idle) < 0).all()
    assert [arena.block(int(i)).arrived for i in writer.ids] == [0, 0]
    one_of_two = arena.join(writer.handles)
    assert table.store(one_of_two, [1], first=1).tolist()[0] < 0
    assert (table.finish(one_of_two) < 0).all()
    assert [arena.block(int(i)).arrived for i in writer.ids] == [0, 0]
    assert len(arena.match(keys(2))) == 0
    writer.abort()


def test_some_blocks_of_a_fill(arena):
    table, _ = flat(3)
    fill = arena.allocate(3, keys=keys(3))
    assert table.store(fill, [2], first=1).tolist() == [0]
    first, second, third = table.finish(fill).tolist()
    assert first < 0 and second == 0 and third < 0
    assert arena.match_scattered(keys(3)).hits == 1


def test_a_part_is_finished_by_who_stored_that_part(make_arena):
    table, _ = flat(3)
    arena = make_arena(block_bytes=128)
    writer = arena.allocate(1, keys=keys(1), parts=2)
    writer.begin(0, part=1)
    member = arena.join(writer.handles)
    assert table.store(member, [5], part=0).tolist() == [0]
    assert table.finish(member, part=1).tolist()[0] < 0
    assert arena.block(int(writer.ids[0])).arrived == 0
    writer.abort()


def test_a_store_that_was_refused_as_a_whole_may_be_tried_again(arena):
    table, _ = flat(3)
    large, _ = flat(3, size=1 << 20)
    fill = arena.allocate(1, keys=keys(1))
    with pytest.raises(kvshm.InvalidArgument, match="beyond the block"):
        large.store(fill, [1])
    assert table.store(fill, [1]).tolist() == [0]
    assert table.finish(fill).tolist() == [0]


def test_a_block_is_stored_once(arena):
    """The second store writes nothing, and what both meant is not published."""
    table, base = flat(3)
    fill = arena.allocate(1, keys=keys(1))
    assert table.store(fill, [1]).tolist() == [0]
    base[2] = 9
    assert table.store(fill, [2]).tolist()[0] < 0
    with fill.view(0) as view:
        assert bytes(view)[:64] == bytes([3]) * 64
    assert table.finish(fill).tolist()[0] < 0
    assert len(arena.match(keys(1))) == 0


def test_a_lease_with_misses(arena):
    table, base = flat(0)
    with store(arena, keys(3)[1:2]):
        with arena.match_scattered(keys(3)) as lease:
            codes = table.load(lease, [4, 5, 6]).tolist()
    assert codes[0] < 0 and codes[1] == 0 and codes[2] < 0
    assert bytes(base[5].numpy()) == content(keys(3)[1])[:64]
    base[5] = 0
    assert not base.any()


def test_threads_that_share_a_table(make_arena):
    """Each stores its rows into its part of one fill, and loads them to other rows."""
    table, base = flat(0, n=64, size=4096)
    for row in range(32):
        base[row] = row + 1
    arena = make_arena(blocks=40, block_bytes=4096)
    with arena.allocate(32, keys=keys(32)) as fill, ThreadPoolExecutor(4) as pool:
        starts = range(0, 32, 8)
        got = list(pool.map(
            lambda at: table.store(fill, range(at, at + 8), first=at).tolist(), starts))
        assert got == [[0] * 8] * 4
        assert table.finish(fill).tolist() == [0] * 32
        with arena.match(keys(32)) as hit:
            got = list(pool.map(
                lambda at: table.load(hit, range(63 - at, 55 - at, -1), first=at).tolist(),
                starts))
            assert got == [[0] * 8] * 4
    for row in range(32):
        assert (base[63 - row] == row + 1).all()


# What is refused

def test_a_descriptor_wrong_by_one_stride():
    base = torch.zeros((3, 10, 4, 16, 32), dtype=torch.bfloat16)
    good = {f"layers.{i}": base[i] for i in range(3)}
    paged.runs_of(good, 10)
    # torch itself would refuse this one; an engine's own descriptor may be anything.
    late = Memory(base[2].data_ptr() + base.stride(1) * 2, tuple(base[2].shape), base[2].stride(),
                  base=base.data_ptr(), nbytes=base.nbytes, item=2)
    with pytest.raises(kvshm.InvalidArgument, match=r"'layers\.2'.*of an allocation of"):
        paged.runs_of({**good, "layers.2": late}, 10)
    inside = base.as_strided(base[1].shape, base[1].stride(), base.stride(0) + base.stride(1))
    with pytest.raises(kvshm.InvalidArgument, match=r"'layers\.[12]'.*overlap"):
        paged.runs_of({**good, "layers.1": inside}, 10)
    narrow = base[1].as_strided(base[1].shape, (2048 - 32, *base[1].stride()[1:]))
    with pytest.raises(kvshm.InvalidArgument, match=r"'layers\.1'.*overlap"):
        paged.runs_of({**good, "layers.1": narrow}, 10)


@pytest.mark.parametrize("shape, strides, said", [
    ((10, 4, 8), (32, 8, 0), "stride 0"),
    ((10, 4, 8), (0, 8, 1), "blocks: stride 0"),
    ((10, 4, 8), (32, -8, 1), "stride -8"),
    ((10, 4, 8), (31, 8, 1), "blocks overlap"),
    ((10, 4, 8), (64, 7, 1), "dimension 1 overlap"),
    ((11, 4, 8), (32, 8, 1), "11 rows: expected 10 blocks"),
    ((20, 4, 8), (32, 8, 1), "20 rows: expected 10 blocks of 1"),
    ((10,), (32,), "blocks first"),
    ((10, 0, 8), (32, 8, 1), "something in them"),
])
def test_shapes_and_strides_that_cannot_be(shape, strides, said):
    room = torch.zeros(4096, dtype=torch.uint8)
    odd = Memory(room.data_ptr() + 100, shape, strides, base=room.data_ptr(), nbytes=4096)
    with pytest.raises(kvshm.InvalidArgument, match=f"'odd'.*{said}"):
        paged.runs_of({"odd": odd}, 10)


def test_two_devices():
    room = torch.zeros(4096, dtype=torch.uint8)
    one, two = (Memory(room.data_ptr() + i, (10, 64)) for i in (0, 1000))
    two.device = "cuda:0"
    with pytest.raises(kvshm.InvalidArgument, match="'b' is on cuda:0, others on cpu"):
        paged.runs_of({"a": one, "b": two}, 10)
    two.device = "meta"
    with pytest.raises(kvshm.InvalidArgument, match="meta"):
        paged.runs_of({"b": two}, 10)
    for wrong in ({}, None):
        with pytest.raises(kvshm.InvalidArgument):
            paged.runs_of(wrong or {}, 10)


# The text that belongs into the identity

def test_the_text_is_of_the_layout_alone():
    def text(order, **more):
        return paged.runs_of(in_order(order, **(SIZES | more)), SIZES["B"]).layout_text

    assert text("LBHNC") == text("LBHNC")
    assert len({text(order) for order in ORDERS}) == len(ORDERS) - 2
    # Where the blocks stand is not in it.
    assert text("LBHNC") == text("BLHNC") and text("LBNHC") == text("BLNHC")
    many = paged.runs_of(in_order("LBHNC", **(SIZES | {"B": 30})), 30)
    assert many.layout_text == text("LBHNC"), "the number of blocks is not in it"
    assert text("LBHNC") != text("LBHNC", L=4)
    assert text("LBHNC", N=32, C=16) != text("LBHNC")
    whole = in_order("LBHNC", **SIZES)
    turned = dict(reversed(whole.items()))
    assert paged.runs_of(turned, 10).layout_text != text("LBHNC")
    assert "3 layers" in text("LBHNC") and "bfloat16" in text("LBHNC")


def test_allocations_stand_in_the_order_of_the_layers():
    """Not of their addresses, which no two processes share."""
    parts = [torch.zeros((10, 64), dtype=torch.uint8) for _ in range(4)]
    texts, orders = set(), set()
    for some in (parts, parts[::-1]):
        table = paged.runs_of({str(i): t for i, t in enumerate(some)}, 10)
        runs = sorted(table.runs, key=lambda run: run[3])
        orders.add(tuple(address == t.data_ptr() for (address, *_), t in
                         zip(runs, some, strict=False)))
        texts.add(table.layout_text)
    assert len(texts) == 1
    assert orders == {(True,) * 4}


def test_arguments(arena):
    table = paged.runs_of({"a": torch.zeros((10, 64), dtype=torch.uint8)}, 10)
    with arena.allocate(2, keys=keys(2)) as fill:
        for rows in ([-1], [1.5], [[1]], [1 << 32], [1, 2, 3]):
            with pytest.raises(kvshm.InvalidArgument):
                table.store(fill, rows)
        assert table.store(fill, np.array([10, 3], np.uint32)).tolist() == [-34, 0]
        with pytest.raises(kvshm.InvalidArgument, match="beyond the block"):
            paged.runs_of({"a": torch.zeros((10, 8192))}, 10).store(fill, [1, 2])
        with pytest.raises(kvshm.InvalidArgument, match="beyond the block"):
            paged.runs_of({"a": torch.zeros((10, 1024))}, 10).store(fill, [1, 2], part=1)
    with pytest.raises(kvshm.Closed):
        table.store(fill, [1, 2])
    with pytest.raises(TypeError):
        paged.Pages()
