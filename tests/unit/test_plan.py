# SPDX-License-Identifier: Apache-2.0
"""The match plan: how much is reused, what is awaited, what is left to compute."""
import threading
import time

import kvshm
import numpy as np
import pytest
from support.arenas import gauges, keys, store

IDENT = kvshm.Identity(model="plan", weights="w", block_tokens=16)
WANTED = IDENT.keys(range(16 * 8))


@pytest.fixture
def planned(make_arena):
    return make_arena(blocks=32, identity=IDENT)


@pytest.mark.semantics(47)
@pytest.mark.parametrize("tokens, cached, reused", [
    (128, 8, 7),    # all of it is there: one block is computed all the same
    (129, 8, 8),    # one token is left over
    (143, 8, 8),
    (128, 7, 7),
    (128, 3, 3),
    (128, 0, 0)])
def test_at_least_one_token_is_left(planned, tokens, cached, reused):
    store(planned, WANTED[:cached]).release()
    with kvshm.plan(planned, WANTED, tokens) as plan:
        assert (plan.reused_blocks, plan.reused_tokens) == (reused, reused * 16)
        assert len(plan.lease) == reused == gauges(planned)["held"]
        assert plan.compute_tokens == tokens - reused * 16 > 0
        assert plan.reason == ("miss" if cached == 0 else "hit" if reused >= 7 else "partial")
    assert gauges(planned)["held"] == 0


@pytest.mark.semantics(47)
def test_a_prompt_shorter_than_a_block_loads_nothing(planned):
    with kvshm.plan(planned, WANTED[:0], 10) as plan:
        assert (plan.reused_blocks, plan.reused_tokens, plan.compute_tokens) == (0, 0, 10)
    store(planned, WANTED[:1]).release()
    with kvshm.plan(planned, WANTED[:1], 16) as plan:
        assert (plan.reused_blocks, plan.compute_tokens) == (0, 16)


def test_everything_if_no_logits_are_wanted(planned):
    store(planned, WANTED).release()
    with kvshm.plan(planned, WANTED, keep_last=False) as plan:
        assert (plan.reused_blocks, plan.reused_tokens, plan.compute_tokens) == (8, 128, 0)


def test_tokens_may_be_given_as_they_are(planned):
    with kvshm.plan(planned, WANTED, list(range(130))) as plan:
        assert plan.tokens == 130
    with kvshm.plan(planned, WANTED) as plan:
        assert plan.tokens == 128
    with pytest.raises(kvshm.InvalidArgument, match="8 keys"):
        kvshm.plan(planned, WANTED, 127)


def test_what_to_compute_and_allocate(planned):
    store(planned, WANTED[:2]).release()
    store(planned, WANTED[4:5]).release()  # behind a gap
    others = planned.allocate(1, keys=WANTED[5:6])
    with kvshm.plan(planned, WANTED, 140, tag="r1") as plan:
        assert plan.reused_blocks == 2 and plan.lease.tag == "r1"
        assert list(plan.states) == [0, 0, 1, 8, 0, 0]
        assert list(plan.missing) == [2, 3, 6, 7]
        assert plan.fits
        with plan.allocate() as fill:
            assert list(fill.status) == [1, 1, kvshm.Status.EXISTS, kvshm.Status.PENDING, 1, 1]
            lease = fill.register("reject")
            assert planned.block(int(lease.ids[0])).parent == plan.lease.ids[1]
            lease.release()
    others.abort()
    assert planned.stats().rejected_total == 1


def test_whether_it_fits(planned):
    with kvshm.plan(planned, WANTED, 32 * 16) as plan:
        assert plan.fits
    with kvshm.plan(planned, WANTED, 33 * 16) as plan:
        assert not plan.fits
    held = planned.allocate(30)
    store(planned, WANTED[:2]).release()
    with kvshm.plan(planned, WANTED[:2], 4 * 16) as plan:  # its own two are held by now
        assert plan.reused_blocks == 2 and not plan.fits
    held.abort()


def test_it_waits_for_what_is_being_filled_and_goes_on(planned):
    store(planned, WANTED[:2]).release()
    fills = [planned.allocate(1, keys=WANTED[i:i + 1]) for i in (2, 3, 4)]

    def finish():
        for fill in fills:
            time.sleep(0.05)
            fill.register().release()

    thread = threading.Thread(target=finish)
    thread.start()
    with kvshm.plan(planned, WANTED, 140, compute_ms=2000) as plan:
        assert plan.reused_blocks == 5 and plan.pending is None
        assert plan.waits >= 1 and 0.1 < plan.waited < 5
    thread.join(10)


def test_it_computes_what_its_filler_gave_up(planned):
    fill = planned.allocate(2, keys=WANTED[:2])
    timer = threading.Timer(0.1, fill.abort)
    timer.start()
    with kvshm.plan(planned, WANTED, compute_ms=60_000, wait=60) as plan:
        assert plan.reused_blocks == 0 and plan.pending is None
        assert plan.waited < 5
        assert list(plan.missing) == list(range(8))
    timer.join(10)


def test_it_waits_no_longer_than_computing_would_take(planned):
    """Ski rental: as long as the run that is under way costs, and not for ever."""
    fill = planned.allocate(4, keys=WANTED[:4])
    start = time.monotonic()
    with kvshm.plan(planned, WANTED, compute_ms=50, wait=60) as plan:
        assert 0.19 < time.monotonic() - start < 3
        assert plan.pending == fill.handles[0] and plan.pending_blocks == 4
        assert plan.reused_blocks == 0 and plan.waits == 1
        assert list(plan.states) == [8] * 4 + [0] * 4
        assert list(plan.missing) == [4, 5, 6, 7]


def test_progress_of_the_other_renews_the_patience(planned):
    """Each block takes half as long as computing one; all eight together take four times the
    patience for the last one."""
    fills = [planned.allocate(1, keys=WANTED[i:i + 1]) for i in range(8)]

    def finish():
        for fill in fills:
            time.sleep(0.15)
            fill.register().release()

    thread = threading.Thread(target=finish)
    thread.start()
    with kvshm.plan(planned, WANTED, 140, compute_ms=400) as plan:
        assert plan.reused_blocks == 8 and plan.waited > 0.9
    thread.join(10)


def test_never_waiting(planned):
    fill = planned.allocate(1, keys=WANTED[:1])
    for options in ({"wait": 0}, {"compute_ms": 0}):
        start = time.monotonic()
        with kvshm.plan(planned, WANTED, **options) as plan:
            assert plan.pending == fill.handles[0] and plan.waited < 0.2
        assert time.monotonic() - start < 1


def test_each_reused_block_is_touched_once(planned):
    """Also those that came while it waited, and however often it looked."""
    store(planned, WANTED[:2]).release()
    fills = [planned.allocate(1, keys=WANTED[i:i + 1]) for i in (2, 3)]
    counted = planned.stats().touches_total

    def finish():
        for fill in fills:
            time.sleep(0.05)
            fill.register().release()

    thread = threading.Thread(target=finish)
    thread.start()
    with kvshm.plan(planned, WANTED[:4], 70, compute_ms=2000) as plan:
        thread.join(10)
        assert plan.reused_blocks == 4
        assert planned.stats().touches_total == counted + 4
        uses = [planned.block(int(i)).frequency for i in plan.lease.ids]
        assert len(set(uses)) == 1


def test_a_raw_arena_needs_the_block_size(arena):
    with pytest.raises(kvshm.InvalidArgument, match="block_tokens"):
        kvshm.plan(arena, keys(2))
    with kvshm.plan(arena, keys(2), block_tokens=8) as plan:
        assert plan.tokens == 16 and "miss" in repr(plan)
    for wrong in ({"block_tokens": 0}, {"block_tokens": 8, "compute_ms": -1},
                  {"block_tokens": 8, "wait": -1}):
        with pytest.raises(kvshm.InvalidArgument):
            kvshm.plan(arena, keys(2), **wrong)


_PLANNER = """
    import sys, kvshm
    ident = kvshm.Identity(model="plan", weights="w", block_tokens=16)
    arena = kvshm.Arena.attach(sys.argv[1], identity=ident)
    keys = ident.keys(range(16 * 8))
    say("ready")
    hear()
    with kvshm.plan(arena, keys, 130, wait=30, compute_ms=1e4) as plan:
        say([plan.reused_blocks, plan.waits])
"""


def test_across_processes_one_computes_and_the_others_wait(planned, worker):
    others = [worker(_PLANNER, planned.name) for _ in range(3)]
    for one in others:
        one.hear()
    with kvshm.plan(planned, WANTED, 130) as plan, plan.allocate() as fill:
        for one in others:
            one.say("plan")
        time.sleep(0.3)
        fill.register().release()
    for one in others:
        reused, waits = one.hear()
        assert reused == 8 and waits >= 1
    assert planned.stats().allocated_total == 8


def test_when_the_computing_process_dies_the_next_one_computes(planned, worker):
    dying = worker("""
        import sys, kvshm
        ident = kvshm.Identity(model="plan", weights="w", block_tokens=16)
        arena = kvshm.Arena.attach(sys.argv[1], identity=ident)
        fill = arena.allocate(8, keys=ident.keys(range(16 * 8)))
        say("filling")
        hear()
    """, planned.name)
    dying.hear()
    threading.Timer(0.2, dying.kill).start()
    start = time.monotonic()
    with kvshm.plan(planned, WANTED, 130, wait=60, compute_ms=60_000) as plan:
        assert plan.reused_blocks == 0 and list(plan.missing) == list(range(8))
    assert time.monotonic() - start < 5


def test_random_prefixes_against_a_set_of_keys(planned):
    random = np.random.default_rng(4)
    for round_ in range(100):
        planned.clear()
        have = random.random(8) < 0.7
        for i in np.flatnonzero(have):
            store(planned, WANTED[i:i + 1]).release()
        tokens = int(random.integers(128, 150))
        run = int(np.argmin([*have, False]))
        with kvshm.plan(planned, WANTED, tokens) as plan:
            assert plan.reused_blocks == min(run, (tokens - 1) // 16)
            rest = have[plan.reused_blocks:]
            assert list(plan.states) == [int(there) for there in rest]
