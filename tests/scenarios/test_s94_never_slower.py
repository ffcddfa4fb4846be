# SPDX-License-Identifier: Apache-2.0
"""S94: with the cost gate (min_speed) a mock engine is never slower than one without a cache.

The engine computes 10,000 tokens a second. It sleeps as long as computing would take, so that the
gate's clock runs as it would, and counts exactly that, not what a sleep takes: then the time
without a cache has no noise at all, and nothing needs rounds. What the cache takes is measured,
every wait for a load with it; of the calls that loaded nothing the median counts for each, since
what makes one of a hundred longer is the machine. All engines run at once, each in a control group
of its own. What it takes to know the speed, once in a process, is looked at by itself.
"""
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvshm.tools.benchmarks.mover.throttle import Refused, Throttle
from kvshm.tools.benchmarks.p5_disk import default_folder
from support.player import Player

ENGINE = {"token_bytes": 1024, "tokens": 64, "prompt": 10, "pace": 10_000}
GATE = 10_000 * 1024  # bytes a second that computing makes
SHARES = {0: 0, 20: 2, 80: 8}  # percent: blocks of a prompt that are on disk
DISKS = {"5 MB/s": 5e6, "50 MB/s": 50e6, "unthrottled": 0.0}
# The gate lets one look-up in ten seconds load though the tier is slow, the first at once: where
# the machine takes its time, two of them. Each costs what its length does: see README.md.
SPANS = {"5 MB/s": 9.5, "50 MB/s": 4.0, "unthrottled": 4.0}
CONTROL_SPAN = 3.0
LEARNT = 16 << 20  # bytes that are loaded before a speed is known
MOST = 1.03
Case = tuple[str, int, bool]  # the disk, the share, the gate
CASES: list[Case] = [(disk, share, True) for disk in DISKS for share in SHARES]
CONTROL: Case = ("5 MB/s", 80, False)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """On a disk."""
    with tempfile.TemporaryDirectory(prefix="kvshm-test-", dir=default_folder()) as made:
        yield Path(made)


@pytest.fixture
def found(player, new_name, folder) -> Iterator[dict[Case, dict[str, Any]]]:
    """What each engine has seen; all run at once."""
    with ExitStack() as stack:
        engines: dict[Case, tuple[Player, Throttle]] = {}
        for i, case in enumerate([*CASES, CONTROL]):
            disk, share, gate = case
            try:
                throttle = stack.enter_context(Throttle(folder, f".{i}"))
            except Refused as refused:
                pytest.skip(f"a slow disk: {refused}")
            one = player()
            stack.callback(one.kill)  # before its group goes
            one.send(f"""
                from support.mock_prefill import Engine
                e = Engine({new_name()!r}, {str(folder / str(i))!r}, {str(throttle.members)!r},
                           known={SHARES[share]}, min_speed={GATE if gate else 0}, **{ENGINE})
            """)
            engines[case] = (one, throttle)
        for one, _ in engines.values():
            one.answer(60)
        for (disk, _, _), (_, throttle) in engines.items():
            throttle.set(read=DISKS[disk], write=DISKS[disk])
        seen: dict[Case, dict[str, Any]] = {case: {} for case in engines}
        for what in ("learn", "serve", "twice"):
            for case, (one, _) in engines.items():
                span = SPANS[case[0]] if case[2] else CONTROL_SPAN
                one.send(f"e.{what}({span if what == 'serve' else ''})", "get")
            for case, (one, _) in engines.items():
                seen[case][what] = one.answer(60)
        yield seen


@pytest.mark.slow
def test_never_slower(found):
    for case, seen in found.items():
        disk, share, gate = case
        one, learnt = seen["serve"], seen["learn"]
        print(f"{disk}, {share} %, gate {'on' if gate else 'off'}: "
              f"{one['total'] / one['off']:.4f} of no cache, "
              f"{one['plain'] / one['off']:.4f} with all that the machine did; "
              f"{len(one['waits'])} of {one['prompts']} prompts loaded, {one['skipped']} left out; "
              f"a call {one['call'] * 1e6:.0f} us; {one['state']}, "
              f"{learnt['speed'] / 1e6:.1f} MB/s after {learnt['bytes'] >> 20} MiB in "
              f"{learnt['seconds']:.2f} s")
    for case, seen in found.items():
        one, learnt = seen["serve"], seen["learn"]
        assert one["wrong"] == 0, case
        if case == CONTROL:
            continue
        assert one["total"] <= MOST * one["off"], (case, one)
        # What it is to know the speed: once in a process, and no more than that.
        assert learnt["bytes"] <= LEARNT + ENGINE["prompt"] * ENGINE["tokens"] * 1024, case
        # Each look-up that the disk could have answered and did not: the state says why.
        assert one["skipped"] == one["skipped_slow"], case
        accounted(case, one)
        attributed(case, seen["twice"], one["state"])
    for share in (20, 80):
        slow = found["5 MB/s", share, True]["serve"]
        assert slow["state"] == "SLOW" and slow["skipped"] > 0
        assert len(slow["waits"]) <= 2, "more than one try in ten seconds"
        for disk in ("50 MB/s", "unthrottled"):
            fast = found[disk, share, True]["serve"]
            assert fast["state"] == "OK" and not fast["skipped"]
            assert fast["total"] < fast["off"]
    control = found[CONTROL]["serve"]
    assert not control["skipped"]
    assert control["total"] > 1.3 * control["off"], control


def accounted(case, one):
    """The arena's counters have them where they came from: nothing else was asked for."""
    assert one["tier_hits_total"] == one["tier_loaded_total"] == one["loaded"], case
    assert one["hits_total"] == one["memory"], case


def attributed(case, twice, state):
    blocks = SHARES[case[1]]
    from_disk, from_memory = twice
    if state != "SLOW" or from_disk["got"]:  # it may be time for the next try
        assert from_disk == {"got": blocks, "hits_total": 0, "tier_hits_total": blocks,
                             "tier_loaded_total": blocks}, case
    assert from_memory == {"got": blocks, "hits_total": blocks, "tier_hits_total": 0,
                           "tier_loaded_total": 0}, case
