# SPDX-License-Identifier: Apache-2.0
"""The controller of an adaptive policy: a replay has no process that runs it beside, so it takes a
step every so many accesses."""
from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

# A controller drains what one eighth of the accesses leave; this is about 256 records.
ACCESSES = 2048


def step_of(policy: str) -> Callable[[Any], Any] | None:
    """What to call now and then with the arena; None: the policy needs nobody."""
    if not policy.startswith("adaptive"):
        return None
    try:
        module = importlib.import_module("kvshm.eviction.adaptive")
    except ModuleNotFoundError:
        return None
    step: Callable[[Any], Any] = module.step
    return step
