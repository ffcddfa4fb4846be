# SPDX-License-Identifier: Apache-2.0
"""The short form of `tools/soak tiers`, for the demo's engine; vLLM's is in vllm/test_soak.py."""
from __future__ import annotations

import pytest

pytest.importorskip("torch")

from kvshm.tools.soaks import main  # noqa: E402
from kvshm.tools.soaks.crew import Tally  # noqa: E402
from kvshm.tools.soaks.watch import Sample, Watch  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("kind, seconds", [("built-in", 12), ("layers", 8)])
def test_answers_are_right_and_nothing_leaks(kind, seconds):
    part = main.run(kind, seconds, 3, print, workers=2, requests=32, every=4.0)
    assert main.holds(part), main.table(part)


GOOD = {"wrong": [], "failed": [], "left": [], "unsteady": [], "damaged": 0, "answers": 9,
        "kills": 2, "loaded_blocks": 5, "evicted_blocks": 7, "found_tokens": {"copy": 64},
        "blocks": 25, "working_set": 100}


@pytest.mark.parametrize("field, wrong", [
    ("wrong", ["seat-1: request 3"]), ("failed", ["it died"]), ("left", ["1 blocks_held"]),
    ("unsteady", [{"fds": 9}]), ("damaged", 1), ("answers", 0), ("kills", 0), ("loaded_blocks", 0),
    ("evicted_blocks", 0), ("found_tokens", {}), ("found_tokens", {"copy": 9, "in-place": 0}),
    ("blocks", 26)])
def test_it_says_what_does_not_hold(field, wrong):
    assert main.holds(GOOD)
    assert not main.holds({**GOOD, field: wrong})


@pytest.mark.parametrize("later, steady", [
    (Sample(10, 4, 100 << 10), True), (Sample(14, 6, 164 << 10), True),
    (Sample(15, 4, 100 << 10), False), (Sample(10, 7, 100 << 10), False),
    (Sample(10, 4, 165 << 10), False)])
def test_what_grows_is_seen(later, steady):
    watch = Watch()
    for one in (Sample(10, 4, 100 << 10), None, later):
        watch.note(one)
    assert watch.steady() is steady and watch.samples == 2
    tally = Tally(watches=[watch, Watch()])
    assert len(main.counted(tally)["unsteady"]) == (not steady)
