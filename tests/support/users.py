# SPDX-License-Identifier: Apache-2.0
"""Becoming another user in a worker: after the imports, so that the checkout may be private."""
import os

import pytest

#: Not in /etc/passwd, and nobody's on any sane host.
ALICE, BOB, MALLORY = 64001, 64002, 64003


def need_root() -> None:
    if os.geteuid():
        pytest.skip("other users need root")


def become(uid: int, gid: int | None = None, groups: tuple[int, ...] = ()) -> str:
    """Statements for a player."""
    return (f"os.setgroups({list(groups)!r}); os.setgid({gid if gid is not None else uid}); "
            f"os.setuid({uid})")
