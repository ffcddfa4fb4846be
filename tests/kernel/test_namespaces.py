# SPDX-License-Identifier: Apache-2.0
"""A lock is the object's: containers with pids and mounts of their own see the same one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .actors import Actor
from .locks import LIFE, LIMIT, byte_is_held, seconds_until_free

BYTE = LIFE + 3
APART = ["unshare", "--pid", "--mount", "--propagation", "private", "--fork", "--kill-child"]

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(os.geteuid() != 0, reason="new namespaces need root"),
]


def inner_pid(outer: int) -> int:
    return int(Path(f"/proc/{outer}/task/{outer}/children").read_text().split()[0])


def test_owner_in_other_namespaces_is_seen_and_its_death_too(
    shm_object: Path, start: Callable[..., Actor]
) -> None:
    owner = start("holder", shm_object, 3, "mapping", "stay", under=APART)
    assert owner.line() == ["ready"]
    status = Path(f"/proc/{inner_pid(owner.pid)}/status").read_text()
    assert next(x for x in status.splitlines() if x.startswith("NSpid")).split()[-1] == "1"
    assert byte_is_held(shm_object, BYTE)
    os.kill(inner_pid(owner.pid), 9)
    seconds_until_free(shm_object, BYTE)


def test_owner_outside_is_seen_from_other_namespaces(
    shm_object: Path, hold: Callable[..., Actor], programs: Path
) -> None:
    owner = hold(shm_object)

    def seen_from_apart() -> str:
        command = [*APART, str(programs / "asker"), str(shm_object), "r", "held", str(BYTE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        return done.stdout.strip()

    assert seen_from_apart() == "held 1"
    owner.kill()
    assert seen_from_apart() == "held 0"
