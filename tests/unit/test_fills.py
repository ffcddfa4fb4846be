# SPDX-License-Identifier: Apache-2.0
"""Fills: allocate, write, register; several members and parts."""
import gc
import threading
import time

import kvshm
import numpy as np
import pytest
from support.arenas import BLOCK, content, eventually, gauges, keys, store

WANTED = keys(3, seed=7)


def test_what_a_fill_says(arena):
    fill = arena.allocate(3, keys=WANTED, parts=2)
    assert len(fill) == 3 and fill.active and fill.parts == 2 and not fill.member
    assert list(fill.status) == [kvshm.Status.ANNOUNCED] * 3
    assert fill.evicted.shape == (0, 16)
    assert [h.id for h in fill.handles] == list(fill.ids)
    assert (arena.presence(WANTED) == kvshm.Presence.FILLING).all()
    lease = arena.match(WANTED)
    assert len(lease) == 0 and lease.pending == fill.handles[0]
    assert arena.pending(WANTED[1]) == fill.handles[1]
    assert "3 blocks" in repr(fill)
    fill.abort()
    assert not fill.active and "over" in repr(fill)
    assert arena.pending(WANTED[1]) is None


def test_a_quiet_fill_shows_nothing(arena):
    fill = arena.allocate(3, keys=WANTED, announce=False)
    assert list(fill.status) == [kvshm.Status.NONE] * 3
    assert not arena.presence(WANTED).any() and arena.match(WANTED).pending is None
    fill.register().release()
    assert arena.presence(WANTED).all()


def test_status_of_keys_that_others_have(arena):
    store(arena, WANTED[:1]).release()
    other = arena.allocate(1, keys=WANTED[1:2])
    fill = arena.allocate(3, keys=WANTED, chained=False)
    assert list(fill.status) == [kvshm.Status.EXISTS, kvshm.Status.PENDING,
                                 kvshm.Status.ANNOUNCED]
    lease = fill.register()
    assert list(lease.results) == [kvshm.Status.DUPLICATE, kvshm.Status.DUPLICATE,
                                   kvshm.Status.PRIMARY]
    assert arena.stats().dup_pending_total == 1
    other.register().release()
    lease.release()
    assert gauges(arena)["inactive"] == 3


def test_over_is_over(arena):
    fill = arena.allocate(1, keys=WANTED[:1])
    lease = fill.register()
    for use in (lambda: fill.view(0), lambda: fill.copy_in(0, b"x"), fill.register, fill.publish,
                lambda: fill.begin(0), lambda: fill.arrive(0), fill.__enter__):
        with pytest.raises(kvshm.Closed):
            use()
    fill.abort()  # does nothing
    assert gauges(arena)["held"] == 1
    assert arena.stats().aborted_total == 0
    lease.release()


@pytest.mark.parametrize("how", ["abort", "with", "forget", "exception"])
def test_every_way_out_aborts(arena, how):
    fill = arena.allocate(3, keys=WANTED)
    if how == "abort":
        fill.abort()
    elif how == "with":
        with fill:
            pass
    elif how == "exception":
        with pytest.raises(ZeroDivisionError), fill:
            1 / 0
    else:
        del fill
        gc.collect()
    assert gauges(arena)["free"] == 16 and not arena.presence(WANTED).any()
    assert arena.stats().aborted_total == 3


def test_copy_in(arena):
    fill = arena.allocate(1, keys=WANTED[:1])
    before = arena.stats().copy_in_bytes_total
    fill.copy_in(0, np.arange(BLOCK // 8, dtype=np.float64))
    fill.copy_in(0, b"abc", offset=5)
    expected = bytearray(np.arange(BLOCK // 8, dtype=np.float64).tobytes())
    expected[5:8] = b"abc"
    assert bytes(fill.view(0)) == expected
    assert arena.stats().copy_in_bytes_total == before + BLOCK + 3
    strided = np.arange(2 * BLOCK, dtype=np.uint8)[::2]
    fill.copy_in(0, strided)
    assert bytes(fill.view(0)) == strided.tobytes()
    for data, offset in ((b"x", BLOCK), (bytes(BLOCK + 1), 0), (b"x", -1), ("text", 0), (5, 0)):
        with pytest.raises(kvshm.InvalidArgument):
            fill.copy_in(0, data, offset=offset)


def test_register_with_keys_given_late(arena):
    fill = arena.allocate(3)
    with pytest.raises(kvshm.InvalidArgument, match="keys"):
        fill.register()
    with pytest.raises(kvshm.InvalidArgument) as wrong:
        fill.register(keys=WANTED[:2])
    assert (wrong.value.expected, wrong.value.actual) == (3, 2)
    with pytest.raises(kvshm.InvalidArgument, match="policy"):
        fill.register(policy="maybe", keys=WANTED)
    assert fill.active and gauges(arena)["filling"] == 3
    with fill.register(keys=WANTED, tag="late") as lease:
        assert list(lease.ids) == list(fill.ids) and lease.tag == "late"


def test_register_stops_at_the_block_that_fails(arena):
    """Announced under one key, registered under another: refused, and the others are unharmed."""
    fill = arena.allocate(3, keys=WANTED)
    wrong = WANTED.copy()
    wrong[1] = keys(1, seed=70)[0]
    with pytest.raises(kvshm.InvalidArgument, match="block 1"):
        fill.register(keys=wrong)
    assert fill.active
    assert list(arena.presence(WANTED)) == [kvshm.Presence.G2, kvshm.Presence.FILLING,
                                            kvshm.Presence.FILLING]
    assert gauges(arena)["inactive"] == 1
    with fill.register() as lease:
        assert list(lease.ids) == list(fill.ids[1:])
    assert gauges(arena)["inactive"] == 3


@pytest.mark.parametrize("options", [
    {"n": -1}, {"n": 17}, {"parts": 0}, {"parts": 33}, {"priority": 0}, {"priority": 101},
    {"timeout": -1}, {"timeout": float("nan")}, {"timeout": float("inf")}, {"keys": WANTED[:2]},
    {"after": (99, 5)}, {"after": "x"}, {"tenant": 256}], ids=str)
def test_refused_allocations(arena, options):
    with pytest.raises(kvshm.InvalidArgument):
        arena.allocate(**{"n": 3, **options})
    assert gauges(arena)["free"] == 16


def test_a_wait_without_limit_is_refused_by_type(arena):
    with pytest.raises(kvshm.InvalidArgument):
        arena.allocate(1, timeout=None)


def test_allocate_waits_for_space(arena):
    fill = arena.allocate(16)
    start = time.monotonic()
    with pytest.raises(kvshm.NoSpaceInTime) as late:
        arena.allocate(2, timeout=0.25)
    assert 0.2 < time.monotonic() - start < 5
    assert isinstance(late.value, kvshm.NoSpace) and isinstance(late.value, TimeoutError)
    timer = threading.Timer(0.2, fill.abort)
    timer.start()
    start = time.monotonic()
    assert len(arena.allocate(2, timeout=30)) == 2
    assert time.monotonic() - start < 5
    timer.join(10)


def test_no_evict_takes_free_blocks_only(arena):
    store(arena, keys(10, seed=71)).release()
    with pytest.raises(kvshm.NoSpace):
        arena.allocate(7, evict=False)
    assert len(arena.allocate(6, evict=False)) == 6


def test_after_chains_the_blocks(arena):
    chain = keys(4, seed=72)
    with store(arena, chain[:2]) as head:
        with arena.allocate(2, keys=chain[2:], after=head) as fill:
            with fill.register() as tail:
                ids = [*map(int, head.ids), *map(int, tail.ids)]
                assert [arena.block(i).parent for i in ids] == [kvshm.NONE, *ids[:3]]
                assert [arena.block(i).depth for i in ids] == [0, 1, 2, 3]
        alone = arena.allocate(1, keys=keys(1, seed=73), after=head.handle(0))
        assert arena.block(int(alone.register().ids[0])).parent == ids[0]


def test_parts_make_a_block_whole(arena):
    fill = arena.allocate(1, keys=WANTED[:1], parts=3)
    for part in (2, 0):
        fill.begin(0, part)
        fill.arrive(0, part)
    with pytest.raises(kvshm.Misuse):  # begun before
        fill.begin(0, 0)
    with pytest.raises(kvshm.Misuse):  # not begun
        fill.arrive(0, 1)
    with pytest.raises((kvshm.Misuse, kvshm.InvalidArgument)):
        fill.begin(0, 3)
    with pytest.raises(kvshm.Misuse):  # part 1 is missing
        fill.register()
    assert fill.active and len(arena.match(WANTED[:1])) == 0
    fill.begin(0, 1)
    fill.arrive(0, 1)
    fill.register().release()
    assert len(arena.match(WANTED[:1])) == 1


_RANK = """
    import sys, kvshm
    arena = kvshm.Arena.attach(sys.argv[1])
    part, parts = int(sys.argv[2]), int(sys.argv[3])
    while True:
        handles = [kvshm.Handle(*h) for h in hear()]
        fill = arena.join(handles)
        size = arena.block_bytes // parts
        for i in range(len(fill)):
            fill.begin(i, part)
            fill.view(i)[part * size:(part + 1) * size] = bytes([part + 1]) * size
            fill.arrive(i, part)
        say(len(fill))
        if hear() == "publish":
            lease = fill.publish(tag="rank")
            say(list(map(int, lease.ids)))
            lease.release()
        else:
            fill.abort()
            say("left")
"""


def test_ranks_fill_one_block_side_by_side(arena, worker):
    ranks = [worker(_RANK, arena.name, part, 4) for part in range(4)]
    fill = arena.allocate(2, keys=WANTED[:2], parts=4)
    for rank in ranks[:3]:
        assert rank.ask(fill.handles) == 2
    with pytest.raises(kvshm.Misuse):
        fill.publish()
    assert arena.block(int(fill.ids[0])).arrived == 0b0111
    assert ranks[3].ask(fill.handles) == 2
    assert ranks[1].ask("publish") == list(fill.ids)
    lease = fill.publish()  # another member was faster: just as good
    expected = b"".join(bytes([part + 1]) * (BLOCK // 4) for part in range(4))
    assert [bytes(lease.view(i)) for i in range(2)] == [expected] * 2
    for rank in (ranks[0], ranks[2], ranks[3]):
        assert rank.ask("publish") == list(fill.ids)
    lease.release()
    assert eventually(lambda: gauges(arena)["inactive"] == 2)


def test_a_rank_that_dies_makes_the_fill_unpublishable(arena, worker):
    ranks = [worker(_RANK, arena.name, part, 2) for part in range(2)]
    fill = arena.allocate(1, keys=WANTED[:1], parts=3)  # the third part never comes
    for rank in ranks:
        rank.ask(fill.handles)
    ranks[0].kill()
    assert eventually(lambda: len(arena.processes()) == 2)
    with pytest.raises(kvshm.Misuse):
        fill.publish()
    fill.abort()
    assert gauges(arena)["filling"] == 1  # rank 1 is still in it
    assert ranks[1].ask("leave") == "left"
    assert gauges(arena)["free"] == 16


def test_join_is_all_or_nothing(arena):
    fill = arena.allocate(2, keys=WANTED[:2])
    first, second = fill.handles
    with pytest.raises(kvshm.ArenaNotFound):
        arena.join([first, (second.id, second.seq + 1)])
    member = arena.join([first, second])
    assert member.member and len(member) == 2
    fill.abort()
    assert gauges(arena)["filling"] == 2
    member.abort()
    assert gauges(arena)["free"] == 16
    with pytest.raises(kvshm.ArenaNotFound):
        arena.join(first)


def test_wait_for_a_fill(arena):
    fill = arena.allocate(2, keys=WANTED[:2])
    first, second = fill.handles
    assert arena.wait(first, 0.0) is False
    start = time.monotonic()
    assert arena.wait(first, 0.2) is False
    assert 0.15 < time.monotonic() - start < 5
    timer = threading.Timer(0.1, lambda: fill.register().release())
    timer.start()
    assert arena.wait(first, 30) is True and arena.wait(second, 30) is True
    timer.join(10)
    assert arena.wait(first, 0.0) is True  # READY already
    assert arena.wait((first.id, first.seq + 5), 1.0) is False  # no such life
    over = arena.allocate(1, keys=WANTED[2:])
    handle = over.handles[0]
    timer = threading.Timer(0.1, over.abort)
    timer.start()
    start = time.monotonic()
    assert arena.wait(handle, 30) is False
    assert time.monotonic() - start < 5
    timer.join(10)


def test_fills_are_not_made_by_hand():
    for make in (kvshm.Fill, lambda: kvshm.Fill.__new__(kvshm.Fill)):
        with pytest.raises(TypeError):
            make()


def test_content_reaches_another_process(arena, worker):
    store(arena, WANTED).release()
    reader = worker("""
        import sys, kvshm
        arena = kvshm.Arena.attach(sys.argv[1])
        with arena.match(bytes.fromhex(sys.argv[2])) as hit:
            say([bytes(hit.view(i)).hex() for i in range(len(hit))])
    """, arena.name, WANTED.tobytes().hex())
    assert [bytes.fromhex(text) for text in reader.hear()] == [content(key) for key in WANTED]
