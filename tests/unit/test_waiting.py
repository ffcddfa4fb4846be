# SPDX-License-Identifier: Apache-2.0
"""What can wait lets go of the GIL, and answers signals within its slice."""
import re
import threading
import time
from pathlib import Path

import kvshm
import numpy as np
import pytest
from support.arenas import keys, store

SOURCES = Path(__file__).resolve().parents[2] / "src" / "kvshm"

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


def keeps_the_gil(call):
    """Whether no other thread ran for as long as `call` computed.

    The library's share of the call's time cannot be less than its CPU time, so with the GIL held
    there is such a gap in the other thread's time line. Without it there may be one by chance, on a
    busy machine.
    """
    started, inside = threading.Event(), []

    def run():
        started.set()
        begin, used = time.perf_counter(), time.thread_time()
        call()
        inside.append((begin, time.thread_time() - used, time.perf_counter()))

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(10)
    turns = []
    while thread.is_alive():
        turns.append(time.perf_counter())
    thread.join(60)
    begin, used, end = inside[0]
    turns = [begin, *(turn for turn in turns if begin < turn < end), end]
    return max(b - a for a, b in zip(turns, turns[1:])) > 0.8 * used


@pytest.mark.parametrize("what", ["wait", "allocate"])
def test_waits_let_other_threads_run(arena, what):
    fill = arena.allocate(16)
    call = {"wait": lambda: arena.wait(fill.handles[0], 0.5),
            "allocate": lambda: pytest.raises(kvshm.NoSpace, arena.allocate, 1, timeout=0.5)}[what]
    turns = []
    thread = threading.Thread(target=call)
    thread.start()
    end = time.monotonic() + 0.4
    while time.monotonic() < end:
        turns.append(time.monotonic())
    thread.join(10)
    assert len({round(turn, 2) for turn in turns}) > 20  # of 40; with the GIL held it is 1 or 2


@pytest.mark.parametrize("what", ["match", "scattered", "scan", "presence", "release", "trim"])
def test_long_batches_let_other_threads_run(make_arena, what):
    """One call with millions of keys; seen in one of five attempts."""
    arena = make_arena(blocks=1000, block_bytes=64)
    store(arena, keys(1000, seed=5)).release()
    many = np.tile(keys(1000, seed=5), (3000, 1))
    for _ in range(5):
        lease = arena.match(many) if what in ("release", "trim") else None
        kept = []
        call = {
            "match": lambda: kept.append(arena.match(many)),
            "scattered": lambda: kept.append(arena.match_scattered(many)),
            "scan": lambda: kept.append(arena.scan(many)),
            "presence": lambda: arena.presence(many),
            "release": lambda: lease.release(),
            "trim": lambda: lease.trim(1),
        }[what]
        if not keeps_the_gil(call):
            return
    pytest.fail(f"{what} kept the GIL five times")


# What may take long or wait; the others are a few loads and stores.
BATCHES = """open create attach close remove allocate register abort publish fill_join fill_begin
    fill_arrive copy_in copy_out match_with match_scattered scan presence release lease_trim
    lease_make pin upgrade acquire drop wait evict clear reset_inactive reap tick get_stats
    get_own_stats get_process is_valid set_log keys_tokens keys_hashes mark_victims object_create
    object_commit object_get object_write object_read object_close match_load load_wait load_notify
    load_status load_lease load_free tier_open get_tier tier_store tier_drain tier_clear
    wait_device call""".split()


def test_every_batch_call_is_made_without_the_gil():
    """In the source: it stands in a `with nogil` block, or in a nogil function."""
    found = set()
    for path in SOURCES.rglob("*.pyx"):
        open_blocks: list[tuple[int, bool]] = []
        begun: int | None = None  # the indent of a signature that goes on over lines
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("#")[0]
            if not code.strip() or code.lstrip().startswith(("from", "cimport", ")")):
                continue
            indent = len(code) - len(code.lstrip())
            while open_blocks and open_blocks[-1][0] >= indent:
                open_blocks.pop()
            # Attachment.wait_for makes its call, `call`, the way that is asked of all here.
            found |= set(re.findall(r"\bwait_for\(kvshm_(\w+)", code)) & set(BATCHES)
            for name in re.findall(r"\b(?:kvshm_(?=\w+\()|(?=call\(self\.ptr))(\w+)\(", code):
                if name in BATCHES:
                    found.add(name)
                    assert any(nogil for _, nogil in open_blocks), f"{path}:{number}: {name}"
            ends = code.rstrip().endswith(":")
            if re.match(r"\s*(cdef|cpdef|def)\b.*\(", code) and ")" not in code and not ends:
                begun = indent
            if ends:
                open_blocks.append((indent if begun is None else begun, "nogil" in code))
                begun = None
    assert found == set(BATCHES)


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
