# SPDX-License-Identifier: Apache-2.0
"""What can wait lets go of the GIL, and answers signals within its slice."""
import threading
import time

import kvshm
import pytest
from support.arenas import keys

_INTERRUPTED = """
    import signal, sys, threading, time, kvshm
    arena = kvshm.Arena.attach(sys.argv[1])
    fill = arena.allocate(1, keys=[bytes([7]) * 16])
    waits = {
        "wait": lambda: arena.wait(fill.handles[0], 60),
        "allocate": lambda: arena.allocate(arena.blocks, timeout=60),
        "plan": lambda: kvshm.plan(arena, [bytes([7]) * 16], block_tokens=16, wait=60,
                                   compute_ms=1e6),
        "flight": lambda: kvshm.SingleFlight(arena).get([bytes([7]) * 16], None, timeout=60),
    }
    say("ready")
    try:
        waits[sys.argv[2]]()
        say("came back")
    except KeyboardInterrupt:
        say(time.monotonic())
    say(len(arena.allocate(1)))                 # and all works as before
"""


@pytest.mark.parametrize("what", ["wait", "allocate", "plan", "flight"])
def test_ctrl_c_ends_a_wait(arena, worker, what):
    one = worker(_INTERRUPTED, arena.name, what)
    assert one.hear() == "ready"
    time.sleep(0.3)
    sent = time.monotonic()
    one.process.send_signal(2)
    ended = one.hear()
    assert ended != "came back" and ended - sent < 1.0
    assert one.hear() == 1


def test_ctrl_c_ends_an_attach(new_name, worker):
    """The creator holds the creation byte and does not come to an end."""
    name = new_name()
    creator = worker("""
        import fcntl, os, struct, sys
        fd = os.open("/dev/shm/kvshm." + sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 2**62 + 128, 1, 0)
        fcntl.fcntl(fd, 37, lock)               # F_OFD_SETLK
        say("making it")
        hear()
    """, name)
    creator.hear()
    for how in ("attach", "open"):
        one = worker("""
            import sys, time, kvshm
            say("ready")
            try:
                getattr(kvshm.Arena, sys.argv[2])(sys.argv[1], blocks=1, block_bytes=64, timeout=60)
            except KeyboardInterrupt:
                say(time.monotonic())
        """, name, how)
        assert one.hear() == "ready"
        time.sleep(0.5)
        sent = time.monotonic()
        one.process.send_signal(2)
        assert one.hear() - sent < 1.5
    start = time.monotonic()
    with pytest.raises(kvshm.ArenaNotReady):
        kvshm.Arena.open(name, blocks=1, block_bytes=64, timeout=0.5)
    assert 0.4 < time.monotonic() - start < 5
    creator.kill()
    kvshm.Arena.open(name, blocks=1, block_bytes=64, timeout=10).close()


def runs_beside(call, seconds=0.4):
    """How far a Python loop of this thread comes while another thread is inside `call`."""
    done = threading.Event()

    def run():
        try:
            call()
        finally:
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    turns = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end and not done.is_set():
        turns += 1
    thread.join(60)
    return turns


@pytest.mark.parametrize("what", ["wait", "allocate"])
def test_waits_let_other_threads_run(arena, what):
    fill = arena.allocate(16)
    call = {"wait": lambda: arena.wait(fill.handles[0], 0.5),
            "allocate": lambda: pytest.raises(kvshm.NoSpace, arena.allocate, 1, timeout=0.5)}[what]
    assert runs_beside(call) > 1000  # with the GIL held it would be none


def test_batches_let_other_threads_run(make_arena):
    """One call that takes long enough to tell: while it runs, the other thread goes on."""
    arena = make_arena(blocks=100_000, block_bytes=64)
    many = keys(100_000, seed=5)
    fill = arena.allocate(100_000, keys=many)

    def registered():
        fill.register().release()

    calls = {
        "register": registered,
        "match": lambda: arena.match(many).release(),
        "scattered": lambda: arena.match_scattered(many).release(),
        "scan": lambda: arena.scan(many).release(),
        "presence": lambda: arena.presence(many),
        "stats": arena.stats,
        "is_valid": arena.is_valid,
        "clear": arena.clear,
    }
    for name, call in calls.items():
        started, inside = threading.Event(), []

        def run(call=call, started=started, inside=inside):
            started.set()
            begin = time.perf_counter()
            call()
            inside.append((begin, time.perf_counter()))

        thread = threading.Thread(target=run)
        ticks = []
        thread.start()
        started.wait(10)
        while thread.is_alive():
            ticks.append(time.perf_counter())
        thread.join(60)
        begin, end = inside[0]
        middle = [t for t in ticks if begin + (end - begin) * 0.2 < t < end - (end - begin) * 0.2]
        assert middle or end - begin < 0.002, f"{name} kept the GIL for {end - begin:.3f} s"


def test_a_wait_takes_no_longer_than_asked(arena):
    fill = arena.allocate(1)
    for seconds in (0.0, 0.01, 0.05, 0.25):
        start = time.monotonic()
        assert arena.wait(fill.handles[0], seconds) is False
        assert seconds * 0.9 <= time.monotonic() - start < seconds + 1.0


def test_a_signal_handler_may_use_the_arena(arena, worker):
    one = worker("""
        import signal, sys, kvshm
        arena = kvshm.Arena.attach(sys.argv[1])
        fill = arena.allocate(1, keys=[bytes([9]) * 16])
        signal.signal(signal.SIGUSR1, lambda *args: fill.register().release())
        say("ready")
        say(arena.wait(fill.handles[0], 30))
    """, arena.name)
    one.hear()
    time.sleep(0.2)
    one.process.send_signal(10)
    assert one.hear(5) is True


def test_store_is_visible_to_a_waiting_thread_at_once(arena):
    """A waker is not left to the end of the slice."""
    fill = arena.allocate(1, keys=keys(1))
    handle, seen = fill.handles[0], []
    thread = threading.Thread(target=lambda: seen.append((arena.wait(handle, 30),
                                                          time.monotonic())))
    thread.start()
    time.sleep(0.25)
    fill.register().release()
    registered = time.monotonic()
    thread.join(10)
    assert seen[0][0] is True and seen[0][1] - registered < 0.09
