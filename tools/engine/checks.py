# SPDX-License-Identifier: Apache-2.0
"""What must hold after the demo; each check says what was found and what was wanted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .compare import TOLERANCE
from .crash import CLEAN_LIMIT
from .records import Outcome, fraction_from_others
from .settings import COPY, IN_PLACE, OFF, VLLM

REUSE = 0.9  # of the tokens that another worker had before
SPEED_UP = 5.0  # time to first token, cold over warm, on the default model
# The tiny model's few milliseconds are mostly fixed costs of torch.
SPEED_UP_TINY = 1.5


@dataclass(frozen=True)
class Check:
    holds: bool
    value: Any
    wanted: str


def run_checks(outcome: Outcome, tiny: bool) -> dict[str, Check]:
    checks = _answers(outcome)
    checks |= _crash(outcome)
    if outcome.kv != OFF:
        checks |= _reuse(outcome, SPEED_UP_TINY if tiny else SPEED_UP)
        checks |= _copies(outcome)
    return checks


def _at_least(value: float | None, wanted: float) -> Check:
    return Check(value is not None and value >= wanted, value, f">= {wanted:g}")


def _answers(outcome: Outcome) -> dict[str, Check]:
    compared = [one for one in outcome.referenced if one.comparison is not None]
    tokens = sum(one.comparison.tokens_equal for one in compared if one.comparison)
    checks = {
        "tokens_equal": Check(
            0 < tokens == len(compared), f"{tokens} of {len(compared)}",
            "all answers equal those without reuse",
        ),
    }
    if outcome.kv == VLLM:  # it tells no logits
        return checks
    due = [one for one in compared if one.exact]
    same = sum(bool(one.comparison.bitwise) for one in due if one.comparison)
    differ = outcome.logits_max_diff()
    checks["logits_bitwise"] = Check(
        0 < same == len(due), f"{same} of {len(due)}",
        "all answers whose reused blocks were prefilled in whole chunks",
    )
    checks["logits_max_diff"] = Check(
        differ is not None and differ <= TOLERANCE, differ, f"<= {TOLERANCE:g}"
    )
    return checks


def _reuse(outcome: Outcome, speed_up: float) -> dict[str, Check]:
    served = outcome.served
    first = served[0].worker
    second = next((one for one in served if one.worker != first), None)
    cold, warm = outcome.ttft_cold_ms(), outcome.ttft_warm_ms()
    restart = outcome.restart
    checks = {
        "reused_from_others": _at_least(fraction_from_others(served), REUSE),
        "second_worker_first_request": _at_least(
            fraction_from_others([second]) if second else None, REUSE
        ),
        "ttft_cold_over_warm": _at_least(cold / warm if cold and warm else None, speed_up),
        "warm_after_restart": _at_least(
            fraction_from_others([restart]) if restart else None, REUSE
        ),
    }
    if restart is not None and restart.cold is not None:
        checks["ttft_after_restart"] = _at_least(
            restart.cold.ttft_ms / restart.reply.ttft_ms, speed_up
        )
    return checks


def _copies(outcome: Outcome) -> dict[str, Check]:
    copied, expected = outcome.bytes_copied, outcome.bytes_expected
    checks = {}
    if outcome.kv == IN_PLACE:
        checks["bytes_copied"] = Check(
            copied == 0 and expected == 0 and outcome.bytes_copied_at_end == 0,
            outcome.bytes_copied_at_end, "0, as the workers read and write the arena in place",
        )
    elif outcome.kv == COPY:
        checks["bytes_copied"] = Check(
            bool(copied) and copied == expected, copied, f"{expected}, as the workers count"
        )
    return checks


def _crash(outcome: Outcome) -> dict[str, Check]:
    crash = outcome.crash
    if crash is None:
        return {"survived_kill": Check(False, "no crash happened", "a worker killed")}
    asked = len(crash.survivors) + len(crash.lost)
    checks = {
        "killed_in_mid_prefill": Check(
            0 < crash.killed_at < crash.prompt_tokens,
            f"at {crash.killed_at} of {crash.prompt_tokens} tokens", "within the prompt",
        ),
        "survivors_answered": Check(
            asked > 0 and not crash.lost,
            crash.lost or f"{len(crash.survivors)} of {asked}", "all requests of the others",
        ),
    }
    if outcome.kv != OFF:
        clean = crash.clean_ms
        checks["blocks_back_ms"] = Check(
            clean is not None and clean <= 1e3 * CLEAN_LIMIT, clean, f"<= {1e3 * CLEAN_LIMIT:g}"
        )
        checks["arena_valid"] = Check(not crash.broken, crash.broken, "no broken invariant")
        checks["heir_reused_blocks_of_the_killed"] = Check(
            0 < crash.heir_from_victim, f"{crash.heir_from_victim} tokens", "> 0 tokens"
        )
    return checks


def as_json(checks: dict[str, Check]) -> dict[str, dict[str, Any]]:
    return {name: asdict(check) for name, check in checks.items()}
