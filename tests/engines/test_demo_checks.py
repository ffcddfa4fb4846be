# SPDX-License-Identifier: Apache-2.0
"""The demo's own book-keeping: who computed what, what was shared, and checks that can fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from kvshm.tools.engine.asking import Reply  # noqa: E402
from kvshm.tools.engine.checks import run_checks  # noqa: E402
from kvshm.tools.engine.compare import compare  # noqa: E402
from kvshm.tools.engine.demo import blocks_wanted  # noqa: E402
from kvshm.tools.engine.ledger import Ledger, common_prefix  # noqa: E402
from kvshm.tools.engine.prompts import parse  # noqa: E402
from kvshm.tools.engine.records import (Crash, Outcome, Served,  # noqa: E402
                                        fraction_from_others)


def reply(tokens=(1, 2), logits=None, ttft=10.0, reused=()) -> Reply:
    if logits is None:
        logits = np.zeros((len(tokens), 4), np.float32)
        logits[:, 3] = 1
    return Reply(list(tokens), logits, ttft, list(reused), [], {})


def served(worker="b", prompt=100, own=0, others=80, shared=80, exact=True, ttft=10.0,
           cold: Reply | None = None) -> Served:
    one = Served(worker, "talk", 0, [0] * prompt, reply(ttft=ttft), own, others, shared, exact)
    if cold is not None:
        one.cold, one.comparison = cold, compare(one.reply, cold)
    return one


def good_outcome(kv="in-place") -> Outcome:
    cold = reply(ttft=100.0)
    first = served(worker="a", others=0, shared=0, ttft=100.0)
    crash = Crash("b", 100, 50, 3, 12.0, [], [served("a", cold=cold)], served("a", cold=cold), 48,
                  [])
    copied = 0 if kv == "in-place" else 4096
    return Outcome(kv, [first, served(cold=cold), served(cold=cold)], crash, served("c", cold=cold),
                   copied, copied, copied)


@pytest.mark.parametrize("kv", ["in-place", "copy"])
def test_checks_hold_for_a_good_outcome(kv):
    assert all(check.holds for check in run_checks(good_outcome(kv), tiny=False).values())


def spoil(name):
    """One thing gone wrong, and the check that must notice it."""
    outcome = good_outcome()
    second = outcome.served[1]
    crash = outcome.crash
    if name == "reused_from_others":
        outcome.served[2].from_others = 60
    elif name == "second_worker_first_request":
        second.from_others = 70
    elif name == "ttft_cold_over_warm":
        for one in outcome.served:
            one.cold = one.cold and reply(ttft=49.0)
    elif name == "bytes_copied":
        outcome.bytes_copied_at_end = 1
    elif name == "tokens_equal":
        second.comparison = compare(second.reply, reply(tokens=(1, 3)))
    elif name == "logits_bitwise":
        second.comparison = compare(second.reply, reply(logits=second.reply.logits + 1e-6))
    elif name == "logits_max_diff":
        second.comparison = compare(second.reply, reply(logits=second.reply.logits + 2e-4))
    elif name == "killed_in_mid_prefill":
        crash.killed_at = 100
    elif name == "survivors_answered":
        crash.lost.append("worker-0 was killed")
    elif name == "blocks_back_ms":
        crash.clean_ms = None
    elif name == "arena_valid":
        crash.broken.append("a block is lost")
    elif name == "heir_reused_blocks_of_the_killed":
        crash.heir_from_victim = 0
    elif name == "warm_after_restart":
        outcome.restart.from_others = 10
    elif name == "ttft_after_restart":
        outcome.restart.cold = reply(ttft=11.0)
    return outcome


@pytest.mark.parametrize("name", list(run_checks(good_outcome(), tiny=False)))
def test_each_check_notices_what_it_is_for(name):
    checks = run_checks(spoil(name), tiny=False)
    assert not checks[name].holds


def test_copy_mode_wants_the_expected_number():
    outcome = good_outcome("copy")
    outcome.bytes_copied += 1
    assert not run_checks(outcome, tiny=False)["bytes_copied"].holds


def test_an_engine_that_tells_no_logits_is_judged_by_its_tokens():
    outcome = good_outcome("vllm")
    for one in outcome.referenced:
        bare = Reply([1, 2], None, 100.0, [], [], {})
        one.cold, one.comparison = bare, compare(replace(one.reply, logits=None), bare)
    checks = run_checks(outcome, tiny=False)
    assert all(check.holds for check in checks.values())
    assert not any(name.startswith("logits") for name in checks)
    assert outcome.logits_max_diff() is None
    one.comparison = compare(replace(one.reply, tokens=[1, 3]), bare)
    assert not run_checks(outcome, tiny=False)["tokens_equal"].holds


def test_comparison_stops_at_the_first_different_token():
    logits = np.zeros((3, 4), np.float32)
    logits[:, 1], logits[:, 2] = 5, 5 - 5e-5
    other = logits.copy()
    other[2] += 100
    # The second token differs, by a gap below the tolerance; the third stands on another text.
    found = compare(reply((1, 1, 0), logits), reply((1, 2, 3), other))
    assert found.tokens_equal and found.max_diff == 0 and found.bitwise
    wide = logits.copy()
    wide[1, 2] = 1
    found = compare(reply((1, 1, 0), wide), reply((1, 2, 3), wide))
    assert not found.tokens_equal and not found.bitwise


def test_the_ledger_tells_own_blocks_from_those_of_others():
    ledger = Ledger(block_tokens=16)
    ledger.block("a", "k1", "", "prefill")
    ledger.block("b", "k2", "k1", "prefill")
    ledger.block("a", "k2", "k1", "prefill")  # a duplicate: b was first
    assert ledger.split("a", ["k1", "k2"]) == (16, 16)
    assert ledger.split("c", ["k1", "k2"]) == (0, 32)
    assert ledger.registered_by("a") == 1


def test_exact_means_whole_chunks_all_the_way_up():
    ledger = Ledger(16)
    ledger.block("a", "k1", "", "prefill")
    ledger.block("a", "k2", "k1", "pieces")
    ledger.block("a", "k3", "k2", "prefill")
    assert ledger.exact([])
    assert ledger.exact(["k1"])
    assert not ledger.exact(["k1", "k2"])
    assert not ledger.exact(["k1", "k2", "k3"])
    assert not ledger.exact(["unheard of"])


def test_shared_tokens_are_those_that_another_worker_had():
    ledger = Ledger(16)
    ledger.sequence("a", [1, 2, 3, 4, 5])
    ledger.sequence("b", [1, 2, 3, 9, 9, 9])
    assert ledger.shared_with_others("b", [1, 2, 3, 4, 7]) == 4
    assert ledger.shared_with_others("a", [1, 2, 3, 4, 7]) == 3
    assert ledger.shared_with_others("b", [1, 2, 3]) == 2  # the last must be computed


def test_what_a_worker_has_from_itself_is_not_asked_of_others():
    assert fraction_from_others([served(own=32, others=40, shared=80)]) == pytest.approx(40 / 48)
    assert fraction_from_others([served(own=0, others=96, shared=80)]) == 1.0
    assert fraction_from_others([served(shared=0, others=0)]) is None


@pytest.mark.parametrize("a, b, length", [
    ([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([7], [8], 0),
    (list(range(100)), [*range(57), 0, *range(58, 100)], 57),
])
def test_common_prefix(a, b, length):
    assert common_prefix(a, b) == common_prefix(b, a) == length


def test_the_arena_is_large_enough_for_all_conversations():
    prompts = parse("== system\n" + "x" * 100 + "\n== conversation: a\nuser: hi\nuser: ho\n")
    # 103 tokens of system prompt are 6 full blocks; two turns of 5 + 9 tokens add at most 2 each.
    assert blocks_wanted(prompts, 16, 8) >= 2 * 6 + 2 * 2 + 1
