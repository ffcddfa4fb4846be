# SPDX-License-Identifier: Apache-2.0
"""Exit codes, and errors that end the command with one line on stderr."""
from __future__ import annotations

FINE, FOUND, USAGE, NO_ARENA, DENIED, LAYOUT, NOT_READY = range(7)
INTERRUPTED, PIPE_CLOSED = 130, 141  # 128 and the signal's number, as shells have it


class Failure(Exception):
    """Printed as `kvshm: ARENA: what: what to do`."""

    def __init__(self, code: int, arena: str, what: str, remedy: str = "") -> None:
        super().__init__(": ".join(part for part in ("kvshm", arena, what, remedy) if part))
        self.code = code


def from_core(error: Exception, arena: str) -> Failure:
    """What the core raised, as the command reports it."""
    import kvshm

    codes: list[tuple[type[Exception], int]] = [
        (kvshm.ArenaNotFound, NO_ARENA), (kvshm.ArenaReplaced, NO_ARENA),
        (kvshm.PermissionDenied, DENIED), (kvshm.LayoutMismatch, LAYOUT),
        (kvshm.InvalidArgument, USAGE)]
    code = next((code for kind, code in codes if isinstance(error, kind)), NOT_READY)
    return Failure(code, arena, str(error))
