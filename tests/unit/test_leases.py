# SPDX-License-Identifier: Apache-2.0
"""Leases: n holds in one object."""
import gc
import threading

import kvshm
import numpy as np
import pytest
from support.arenas import BLOCK, content, gauges, keys, store

WANTED = keys(6, seed=5)


@pytest.fixture
def cached(arena):
    store(arena, WANTED).release()
    return arena


def test_what_a_lease_says(cached):
    with cached.match(WANTED, tag="request-7") as lease:
        assert len(lease) == lease.hits == 6 and lease
        assert lease.ids.dtype == np.uint32 and not lease.ids.flags.writeable
        assert lease.handles == [lease.handle(i) for i in range(6)]
        assert [h.id for h in lease.handles] == list(lease.ids)
        assert lease.handle(-1) == lease.handles[5]
        assert lease.arena is cached and lease.tag == "request-7" and lease.pending is None
        assert "request-7" in repr(lease) and "6 blocks" in repr(lease)
        with pytest.raises(IndexError):
            lease.handle(6)
    assert lease.released and "released" in repr(lease)


def test_release_is_idempotent_and_final(cached):
    lease, other = cached.match(WANTED), cached.match(WANTED)
    before = cached.stats().released_total
    lease.release()
    lease.release()
    # 6 holds of this process, all still held by the other lease: no shared release happened twice
    assert gauges(cached)["held"] == 6
    other.release()
    assert gauges(cached)["held"] == 0
    assert cached.stats().released_total >= before + 6
    assert cached.stats().misuse_total == 0
    for use in (lambda: lease.view(0), lambda: lease.handle(0), lambda: lease.handles,
                lambda: lease.trim(1), lambda: lease.copy_out(0, bytearray(1))):
        with pytest.raises(kvshm.Closed):
            use()
    assert len(lease.ids) == 6  # what it held remains known


def test_a_forgotten_lease_is_released(cached):
    lease = cached.match(WANTED)
    assert gauges(cached)["held"] == 6
    del lease
    gc.collect()
    assert gauges(cached)["held"] == 0


def test_an_exception_releases(cached):
    with pytest.raises(ZeroDivisionError), cached.match(WANTED):
        1 / 0
    assert gauges(cached)["held"] == 0


def test_a_lease_may_be_released_by_another_thread(cached):
    lease = cached.match(WANTED)
    thread = threading.Thread(target=lease.release)
    thread.start()
    thread.join(10)
    assert gauges(cached)["held"] == 0 and lease.released


def test_many_threads_release_one_lease_once(cached):
    for _ in range(50):
        lease, kept = cached.match(WANTED), cached.match(WANTED)
        threads = [threading.Thread(target=lease.release) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert gauges(cached)["held"] == 6
        kept.release()
    assert cached.stats().misuse_total == 0


def test_trim_gives_the_end_back(cached):
    lease = cached.match(WANTED)
    ids = list(lease.ids)
    lease.trim(4)
    assert len(lease) == 4 and list(lease.ids) == ids[:4]
    assert gauges(cached)["held"] == 4
    with pytest.raises(IndexError):
        lease.view(4)
    lease.trim(4)
    for wrong in (-1, 5):
        with pytest.raises(kvshm.InvalidArgument):
            lease.trim(wrong)
    lease.trim(0)
    assert len(lease) == 0 and not lease and gauges(cached)["held"] == 0
    lease.release()
    assert cached.stats().misuse_total == 0


def test_a_scattered_lease_is_not_trimmed(cached):
    with cached.match_scattered([WANTED[0], keys(1, 99)[0]]) as lease:
        assert (len(lease), lease.hits) == (2, 1)
        with pytest.raises(kvshm.Misuse):
            lease.trim(1)


def test_copy_out(cached):
    before = cached.stats().copy_out_bytes_total
    with cached.match(WANTED) as lease:
        whole = np.zeros(BLOCK // 4, np.float32)
        lease.copy_out(2, whole)
        assert whole.tobytes() == content(WANTED[2])
        part = bytearray(10)
        lease.copy_out(2, part, offset=3)
        assert part == content(WANTED[2])[3:13]
        for offset in (BLOCK - 9, BLOCK + 1, -1):
            with pytest.raises(kvshm.InvalidArgument):
                lease.copy_out(2, part, offset=offset)
        with pytest.raises(kvshm.InvalidArgument):
            lease.copy_out(2, b"read-only")
    assert cached.stats().copy_out_bytes_total == before + BLOCK + 10


@pytest.mark.parametrize("form", [
    WANTED, WANTED.tobytes(), [bytes(k) for k in WANTED], list(WANTED), tuple(WANTED),
    memoryview(WANTED), WANTED[::-1][::-1], np.repeat(WANTED, 2, axis=0)[::2],
    bytearray(WANTED.tobytes())], ids=lambda f: type(f).__name__)
def test_keys_in_any_form(cached, form):
    with cached.match(form) as lease:
        assert len(lease) == 6


@pytest.mark.parametrize("form", [
    b"15 bytes, no ke", [b"short"], np.zeros((2, 15), np.uint8), np.zeros((2, 4), np.uint32), 5,
    None, "0" * 16, np.zeros((1, 16), np.float64)], ids=repr)
def test_refused_keys(cached, form):
    with pytest.raises(kvshm.InvalidArgument):
        cached.match(form)


def test_the_zero_key_is_no_key(cached):
    with pytest.raises(kvshm.InvalidArgument):
        cached.allocate(1, keys=bytes(16))


def test_tags():
    assert kvshm.tag_number("sys-prompt") == int.from_bytes(b"sys-prom", "little")
    assert kvshm.tag_number("") == 0 and kvshm.tag_number(7) == 7
    for wrong in (-1, 2**64, None, 1.5):
        with pytest.raises(kvshm.InvalidArgument):
            kvshm.tag_number(wrong)


def test_leases_are_not_made_by_hand():
    for make in (kvshm.Lease, lambda: kvshm.Lease.__new__(kvshm.Lease)):
        with pytest.raises(TypeError):
            make()


def test_upgrade_and_pin(cached):
    lease = cached.match(WANTED)
    handles = lease.handles
    lease.release()
    one = cached.upgrade(handles[0], tag="up")
    assert list(one.ids) == [handles[0].id] and one.tag == "up"
    pin = cached.pin(handles[1:3])
    single = cached.pin(handles[3])
    assert gauges(cached)["held"] == 4 and len(pin) == 2 and len(single) == 1
    assert cached.upgrade((handles[0].id, handles[0].seq + 1)) is None
    for wrong in ((99, 1), "ab", (1,), (-1, 1), None):
        with pytest.raises(kvshm.InvalidArgument):
            cached.upgrade(wrong)
    for held in (one, pin, single):
        held.release()
    assert gauges(cached)["inactive"] == 6


def test_priority_100_is_not_evicted(cached):
    with cached.match(WANTED[:1]) as lease:
        cached.set_priority(lease.handle(0), 100)
        with pytest.raises(kvshm.InvalidArgument):
            cached.set_priority(lease.handle(0), 101)
    fill = cached.allocate(15)
    assert len(fill.evicted) == 5
    assert cached.presence(WANTED[:1])[0] == kvshm.Presence.G2
    with pytest.raises(kvshm.NoSpace):
        cached.allocate(1)
    with cached.match(WANTED[:1]) as lease:
        handle = lease.handle(0)
    with pytest.raises(kvshm.Misuse):  # not held any more
        cached.set_priority(handle, 1)
    with pytest.raises(kvshm.Misuse):
        cached.set_no_cache(handle)
