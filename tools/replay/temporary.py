# SPDX-License-Identifier: Apache-2.0
"""The arena of a replay: blocks without data, under a name of its own, gone afterwards.

A replay that is killed leaves its arena; the next one removes it, once nobody is attached.
"""
from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

import kvshm
from kvshm import shm
from kvshm.eviction import PRESETS, Policy, set_policy

from .failures import ReplayError

NEW_ARENA = "adaptive"  # what a new arena goes by
PREFIX = "replay-"
_count = itertools.count()


@contextlib.contextmanager
def temporary_arena(blocks: int, policy: str | Policy,
                    helper: bool = False) -> Iterator[kvshm.Arena]:
    """An arena of so many blocks without data that goes by a policy, one of PRESETS by its name."""
    if isinstance(policy, str) and policy not in PRESETS:
        raise ReplayError(f"--policy {policy}: there is {', '.join(PRESETS)}")
    name = f"{PREFIX}{os.getpid()}-{next(_count)}"
    arena = None
    try:  # a signal may end the creation, too
        arena = _create(name, blocks, helper)
        set_policy(arena, policy)
        yield arena
    finally:
        with contextlib.suppress(kvshm.Error):
            if arena is not None:
                arena.close()
        with contextlib.suppress(kvshm.Error):
            kvshm.remove(name, force=True)


def _create(name: str, blocks: int, helper: bool) -> kvshm.Arena:
    try:
        return kvshm.Arena.create(name, blocks=blocks, block_bytes=0, pin="off", huge="off",
                                  helper=helper, label="replay")
    except kvshm.NoSpace as e:
        raise ReplayError(f"an arena of {blocks} blocks: {e}", "fewer blocks, or more room on the "
                          "shm mount") from None


def remove_stale() -> None:
    """Arenas of replays that were killed."""
    for name in shm.names():
        pid = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            # Refused while somebody is attached: a replay of another pid namespace.
            with contextlib.suppress(kvshm.Error):
                kvshm.remove(name)
