# SPDX-License-Identifier: Apache-2.0
"""Single flight: one computes, the others get it."""
import threading
import time

import kvshm
import pytest
from support.arenas import content, gauges, keys

WANTED = keys(6, seed=11)


def writer(wanted, log, pause=0.0):
    """A compute function that writes content(), and notes what it was asked for."""
    def compute(fill, first):
        log.append((first, len(fill)))
        time.sleep(pause)
        for i in range(len(fill)):
            fill.view(i)[:] = content(wanted[first + i])
    return compute


def test_it_computes_what_nobody_has(arena):
    flight, log = kvshm.SingleFlight(arena), []
    with flight.get(WANTED, writer(WANTED, log), timeout=10, tag="f") as lease:
        assert [bytes(lease.view(i)) for i in range(6)] == [content(key) for key in WANTED]
        assert lease.tag == "f"
    assert log == [(0, 6)] and flight.computed == 6
    flight.get(WANTED, writer(WANTED, log), timeout=10).release()
    assert log == [(0, 6)]
    arena.evict(WANTED[2:4])
    flight.get(WANTED, writer(WANTED, log), timeout=10).release()
    assert log == [(0, 6), (2, 2)]  # up to what is there behind the gap
    assert gauges(arena)["inactive"] == 6


def test_threads_share_one_computation(arena):
    flight, log, failed = kvshm.SingleFlight(arena), [], []
    barrier = threading.Barrier(8)

    def ask():
        try:
            barrier.wait(10)
            with flight.get(WANTED, writer(WANTED, log, 0.2), timeout=30) as lease:
                assert bytes(lease.view(5)) == content(WANTED[5])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed and log == [(0, 6)]
    assert flight.shared >= 7
    assert arena.stats().allocated_total == 6 and arena.stats().duplicates_total == 0


_FLIER = """
    import sys, time, kvshm
    from support.arenas import content, keys
    arena = kvshm.Arena.attach(sys.argv[1])
    wanted = keys(6, seed=11)
    flight = kvshm.SingleFlight(arena)
    def compute(fill, first):
        time.sleep(0.2)
        for i in range(len(fill)):
            fill.view(i)[:] = content(wanted[first + i])
    say("ready")
    start = hear()
    while time.monotonic() < start:
        pass
    with flight.get(wanted, compute, timeout=30) as lease:
        say([flight.computed, all(bytes(lease.view(i)) == content(wanted[i]) for i in range(6))])
"""


def test_processes_share_one_computation(arena, worker, tests_path):
    fliers = [worker(_FLIER, arena.name, env=tests_path) for _ in range(4)]
    for one in fliers:
        one.hear()
    start = time.monotonic() + 0.3
    for one in fliers:
        one.say(start)
    seen = [one.hear() for one in fliers]
    assert all(good for _, good in seen)
    assert sum(computed for computed, _ in seen) == 6
    assert arena.stats().registered_total == 6


def test_a_failed_computation_is_somebody_elses_turn(arena):
    flight, log = kvshm.SingleFlight(arena), []
    started, second = threading.Event(), []

    def fail(fill, first):
        started.set()
        time.sleep(0.2)
        raise ZeroDivisionError

    def ask():
        started.wait(10)
        second.append(flight.get(WANTED, writer(WANTED, log), timeout=30))

    thread = threading.Thread(target=ask)
    thread.start()
    with pytest.raises(ZeroDivisionError):
        flight.get(WANTED, fail, timeout=30)
    thread.join(30)
    assert log == [(0, 6)] and len(second[0]) == 6
    assert arena.stats().aborted_total == 6


def test_the_limit_on_waiting_for_others(arena):
    fill = arena.allocate(6, keys=WANTED)
    start = time.monotonic()
    with pytest.raises(kvshm.TimedOut):
        kvshm.SingleFlight(arena).get(WANTED, writer(WANTED, []), timeout=0.3)
    assert 0.25 < time.monotonic() - start < 5
    assert fill.active and gauges(arena)["filling"] == 6


def test_no_space_passes_through(arena):
    held = arena.allocate(12)
    with pytest.raises(kvshm.NoSpace):
        kvshm.SingleFlight(arena).get(WANTED, writer(WANTED, []), timeout=5)
    held.abort()
    kvshm.SingleFlight(arena).get(WANTED, writer(WANTED, []), timeout=5).release()
