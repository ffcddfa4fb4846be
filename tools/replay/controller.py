# SPDX-License-Identifier: Apache-2.0
"""The controller of an adaptive policy: a replay is faster than a helper thread wakes, so it
takes a step every so many accesses."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvshm.eviction import adaptive

# A ring has room for the records of so many, where every use is recorded (small arenas).
ACCESSES = 2048


def step_of(policy: str) -> Callable[[Any], Any] | None:
    """What to call now and then with the arena; None: the policy needs nobody."""
    return adaptive.step if policy.startswith("adaptive") else None
