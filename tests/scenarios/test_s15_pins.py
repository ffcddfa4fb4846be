# SPDX-License-Identifier: Apache-2.0
"""S15, S16, S24: every hold is given back exactly once, whatever becomes of the request."""
import random
import threading
import time

import kvshm
import numpy as np
import pytest
from kvshm.index.leases import LeaseRegistry
from support.oracle import raw_keys, store, verify, write


@pytest.fixture
def arena(arena_name):
    with kvshm.Arena.create(arena_name, blocks=256, block_bytes=512, helper=False) as one:
        yield one


def quiet(arena):
    stats = arena.stats()
    assert stats.blocks_held == stats.blocks_filling == stats.blocks_evicting == 0
    assert stats.blocks_free + stats.blocks_inactive == stats.blocks_total
    assert sum(arena.block(i).own_holds for i in range(arena.blocks)) == 0
    assert arena.is_valid() == []


def test_lookups_of_every_fate(arena, rounds):
    """S15: used wholly, in part, not at all, cancelled, dropped, timed out: no pin is left."""
    chance = random.Random(15)
    ident = kvshm.Identity(model="s15", weights="w")
    tokens = [list(range(n * 1000, n * 1000 + 16 * 6)) for n in range(5)]
    chains = [ident.keys(t, salt=salt, extra=extra) for t in tokens
              for salt in (None, "tenant-a", "tenant-b") for extra in (b"", {"adapter": b"x"})]
    for keys in chains:
        store(arena, keys).release()
    registry = LeaseRegistry(arena)
    late = []
    for number in range(rounds(1500, 10_000)):
        keys = chains[chance.randrange(len(chains))]
        lease = arena.match(keys, tag=f"req-{number % 7}")
        assert len(lease) == 6
        fate = chance.randrange(6)
        if fate == 0:  # all of it
            assert verify(lease, keys) == []
            lease.release()
        elif fate == 1:  # a part
            lease.trim(chance.randrange(6))
            lease.release()
        elif fate == 2:  # cancelled by an exception
            with pytest.raises(KeyboardInterrupt), lease:
                raise KeyboardInterrupt
        elif fate == 3:  # the handle object is dropped
            del lease
        elif fate == 4:  # a view outlives the lease
            view = lease.view(2)
            lease.release()
            holds = arena.block(view.handle.id).own_holds
            view.release()
            assert arena.block(view.handle.id).own_holds == holds - 1
        else:  # the request times out later
            late.append((number, lease))
        lease = None
        if late and late[0][0] < number - 50:
            late.pop(0)[1].release()
    time.sleep(0.01)
    held = registry.by_tag()
    assert sum(held.values()) == 6 * len(late) > 0
    assert set(held) <= {f"req-{n}" for n in range(7)}
    ages = registry.older_than(0.01)
    assert ages and all(one.age >= 0.01 for one in ages)
    # Who holds a block: seen from any process, by the slot's bit and the slot's process.
    block = arena.block(int(late[0][1].ids[0]))
    me = [p for p in arena.processes() if p.self][0]
    assert block.holders == 1 << me.slot and block.own_holds >= 1
    for _, lease in late:
        lease.release()
    registry.close()
    quiet(arena)
    assert arena.clear() == len(chains) * 6, "every block is evictable"
    arena.reset_inactive()


def test_release_from_the_handle_alone(arena):
    """S15: a lease made in one place is given back by what the C API calls its token."""
    capi = pytest.importorskip("kvshm.capi")
    with CApi(capi, arena) as c:
        token = c.lease()
        assert c.lib.kvshm_release(c.arena, token) == 0
    quiet(arena)


def test_soak(arena, rounds):
    """S16: mixed operations with a working set of three times the capacity."""
    chance = random.Random(16)
    keys = raw_keys(0, 256 * 3)
    count = rounds(20_000, 1_000_000)
    hits, asked = np.zeros(10), np.zeros(10)
    held = []
    for number in range(count):
        k = chance.randrange(len(keys))
        key, tenth = keys[k:k + 1], number * 10 // count
        what = chance.random()
        if what < 0.8:
            found = arena.match(key)
            asked[tenth] += 1
            if len(found):
                hits[tenth] += 1
                if what < 0.02:
                    held.append(found)
                else:
                    found.release()
            else:
                store(arena, key).release()
        elif what < 0.85:  # failed store
            with arena.allocate(1, keys=key):
                pass
        elif what < 0.9:  # duplicate store
            with arena.allocate(1) as fill:
                write(arena, fill, key)
                fill.register("allow" if what < 0.88 else "reject", keys=key).release()
        elif what < 0.95:
            arena.evict(key)
        elif held:
            held.pop(chance.randrange(len(held))).release()
        if len(held) > 50:
            held.pop(0).release()
        if number % (count // 20) == 0:
            assert arena.is_valid() == []
            holds = sum(arena.block(i).own_holds for i in range(arena.blocks))
            assert holds == len(held), "each reference is a live holder"
    for lease in held:
        lease.release()
    quiet(arena)
    rate = hits / asked
    noise = 3 * (0.25 / asked[9]) ** 0.5 * 2 ** 0.5  # three sigma of a difference of two tenths
    assert abs(rate[9] - rate[1]) < max(0.02, noise), rate


class CApi:
    """A second attachment through the C API, for handles that Python would not let through."""

    def __init__(self, capi, arena):
        self.ffi, self.lib = capi.ffi, capi.lib
        out = self.ffi.new("kvshm_arena **")
        options = self.ffi.new("kvshm_options *")
        options.size, options.flags, options.numa = self.ffi.sizeof("kvshm_options"), 1, -1
        assert self.lib.kvshm_attach(out, arena.name.encode(), options) == 0
        self.arena = out[0]
        self.key = raw_keys(0, 1)
        store(arena, self.key).release()

    def lease(self):
        ids, token = self.ffi.new("uint32_t[1]"), self.ffi.new("kvshm_lease *")
        keys = self.ffi.cast("kvshm_key *", self.ffi.from_buffer(self.key))
        assert self.lib.kvshm_match(self.arena, keys, 1, ids, token) == 1
        self.id = ids[0]
        return token[0]

    def misuse(self):
        stats = self.ffi.new("kvshm_stats *")
        stats.size = self.ffi.sizeof("kvshm_stats")
        assert self.lib.kvshm_get_own_stats(self.arena, stats) == 0
        return stats.misuse_total

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.lib.kvshm_close(self.arena, 1000)


EBADF = 9


def test_double_release(arena):
    """S24: the first succeeds, all others say so and change nothing; misuse is counted."""
    with CApi(pytest.importorskip("kvshm.capi"), arena) as c:
        other = arena.match(c.key)  # while another holder still reads
        token = c.lease()
        assert c.lib.kvshm_release(c.arena, token) == 0
        for wrong in (token, token, 0, 1, 12345, 2**64 - 1, token + 1, token ^ (1 << 40)):
            assert c.lib.kvshm_release(c.arena, wrong) == -EBADF
        assert c.misuse() == 8
        assert other.hits == 1 and verify(other, c.key) == []
        assert arena.block(c.id).own_holds == 1
        other.release()
        other.release()  # Python's Lease knows that it was released
        assert arena.block(c.id).own_holds == 0
    quiet(arena)


def test_release_from_two_threads_at_once(arena, rounds):
    """S24: of two, exactly one wins, each time."""
    with CApi(pytest.importorskip("kvshm.capi"), arena) as c:
        for _ in range(rounds(200, 5000)):
            token, barrier, results = c.lease(), threading.Barrier(2), []

            def release(token=token, barrier=barrier, results=results):
                barrier.wait(10)
                results.append(c.lib.kvshm_release(c.arena, token))

            threads = [threading.Thread(target=release) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert sorted(results) == [-EBADF, 0]
            assert arena.block(c.id).holders == 0
    quiet(arena)


def test_foreign_and_old_handles(arena, player):
    """S24: from another process, of a replaced arena, made up."""
    capi = pytest.importorskip("kvshm.capi")
    keep = store(arena, raw_keys(10, 1))
    handle = keep.handles[0]
    other = player()
    other.do(f"a = kvshm.Arena.attach({arena.name!r}, helper=False)")
    assert other.fails(f"a.set_priority({tuple(handle)}, 100)").kind == "Misuse"
    assert other.fails(f"a.join({tuple(handle)!r} and [{tuple(handle)!r}])").kind in (
        "Misuse", "ArenaNotFound")
    with CApi(capi, arena) as c:
        made_up = c.ffi.new("kvshm_handle[1]", [(handle.seq, handle.id, 0)])
        assert c.lib.kvshm_drop(c.arena, made_up, 1) < 0
        assert c.lib.kvshm_abort(c.arena, made_up, 1) < 0
        assert c.lib.kvshm_publish(c.arena, made_up[0]) < 0
        made_up[0].seq += 7
        assert c.lib.kvshm_upgrade(c.arena, made_up[0], 0) < 0
        assert c.misuse() >= 2
        token = c.lease()
        kvshm.remove(arena.name, force=True)
        # Giving back works in a replaced arena, once.
        assert c.lib.kvshm_release(c.arena, token) == 0
        assert c.lib.kvshm_release(c.arena, token) == -EBADF
    assert verify(keep, raw_keys(10, 1)) == [] and arena.closed is False
    keep.release()
    keep.release()
