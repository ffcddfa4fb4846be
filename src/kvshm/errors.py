# SPDX-License-Identifier: Apache-2.0
"""The exceptions of kvshm, one class for each thing that a caller would handle differently.

Every error that comes out of the library carries `code`, the positive number that the C API
returned (an errno, or 10001 and up), and reads: what was tried, what the library found.
"""
from __future__ import annotations

import errno

__all__ = [
    "ArenaDamaged",
    "ArenaExists",
    "ArenaNotFound",
    "ArenaNotReady",
    "ArenaReplaced",
    "Busy",
    "Cancelled",
    "Closed",
    "Error",
    "Forked",
    "IdentityMismatch",
    "InvalidArgument",
    "LayoutMismatch",
    "Misuse",
    "NoSlot",
    "NoSpace",
    "NoSpaceInTime",
    "OverQuota",
    "OverPinBudget",
    "PermissionDenied",
    "TimedOut",
    "TooLarge",
    "Unsupported",
    "from_code",
]


class Error(Exception):
    """Base of all of them. `code` is the C API's number without its sign, 0 if Python found it."""

    code: int = 0


class ArenaNotFound(Error):
    """There is no arena of this name."""


class ArenaExists(Error):
    """`create` found an arena of this name."""


class ArenaReplaced(Error):
    """The arena was removed or replaced. What is held stays readable; release it, open again."""


class ArenaNotReady(Error):
    """Its creator did not finish in time, or died."""


class NoSpace(Error):
    """No block to be had: all are held, pinned or being filled. Also a mount that is too small.

    `reason`, of an allocation: "held" (or being filled: it may fit later), "pinned" (it would fit
    but for blocks of priority 100), "quota", "size" (it never fits), "no_free" (evict=False);
    else "". The statistics refused_..._total count by it.
    """

    reason: str = ""


class OverQuota(NoSpace):
    """This process would hold more blocks than the quota it was opened with; or a tenant has its
    quota, and too many of its blocks are held to make room."""

    reason = "quota"


class OverPinBudget(NoSpace):
    """As many blocks as may be have priority 100: see Arena.set_pin_budget."""

    reason = "pinned"


class Busy(Error):
    """Something is in use: calls run during `close`, processes are attached during `remove`."""


class TimedOut(Error, TimeoutError):
    """The limit that the caller gave has passed."""


class Cancelled(Error):
    """`cancel_waits` ended this wait, or forbids it."""


class NoSpaceInTime(NoSpace, TimedOut):
    """`allocate` waited for space in vain."""


class IdentityMismatch(Error):
    """The arena belongs to another model identity."""


class LayoutMismatch(Error):
    """Another layout version or block size, or no arena at all."""


class ArenaDamaged(LayoutMismatch):
    """The object is an arena, but what it says about itself does not add up."""


class PermissionDenied(Error):
    """The object belongs to another user."""


class Forked(Error):
    """The arena was opened by the parent process: open it anew in this one."""


class Closed(Error):
    """The arena, lease or fill is closed."""


class InvalidArgument(Error, ValueError):
    """An argument makes no sense. `expected` and `actual` are set where a size was wrong."""

    expected: int | None = None
    actual: int | None = None


class TooLarge(NoSpace, InvalidArgument):
    """More blocks than the arena has, or than its tenant's quota allows: it will never fit."""

    reason = "size"


class NoSlot(Error):
    """All 48 process slots are taken or draining."""


class Misuse(Error):
    """The block is not held by the caller, or is in another state. It stays as it was."""


class Unsupported(Error):
    """This host cannot do what was required (pinning, huge pages, locks)."""


# From 10001 on, in the order of the header's list.
_OWN: tuple[type[Error], ...] = (
    Closed,  # ECLOSED
    Forked,  # EFORKED
    LayoutMismatch,  # ELAYOUT
    IdentityMismatch,  # EIDENTITY
    LayoutMismatch,  # EGEOMETRY
    ArenaNotReady,  # ENOTREADY
    NoSlot,  # ENOSLOT
    NoSpace,  # ENOSPACE
    Misuse,  # ENOTMINE
    Misuse,  # ESTATE
    Misuse,  # EPART
    Busy,  # EPENDING
    Unsupported,  # EUNSUPPORTED
    Busy,  # EINUSE
    Cancelled,  # ECANCELED
    OverQuota,  # EQUOTA
    OverPinBudget,  # EPINNED
    TooLarge,  # ETOOLARGE
)
_BY_CODE: dict[int, type[Error]] = {10001 + i: cls for i, cls in enumerate(_OWN)} | {
    errno.EINVAL: InvalidArgument,
    errno.ERANGE: InvalidArgument,
    errno.EFAULT: InvalidArgument,
    errno.ENAMETOOLONG: InvalidArgument,
    errno.ESTALE: ArenaReplaced,
    errno.ENOENT: ArenaNotFound,
    errno.EEXIST: ArenaExists,
    errno.ENOSPC: NoSpace,
    errno.ENOMEM: NoSpace,
    errno.EBUSY: Busy,
    errno.ETIMEDOUT: TimedOut,
    errno.EACCES: PermissionDenied,
    errno.EPERM: PermissionDenied,
    errno.EBADMSG: ArenaDamaged,
    errno.EBADF: Misuse,
    errno.EOPNOTSUPP: Unsupported,
    errno.ENOSYS: Unsupported,
}


def from_code(code: int, what: str, text: str, detail: str = "") -> Error:
    """The exception for a C API code; `text` is its strerror, `detail` the thread's last error."""
    error = _BY_CODE.get(abs(code), Error)(f"{what}: {detail or text}")
    error.code = abs(code)
    return error


def wrong_size(what: str, expected: int, actual: int) -> InvalidArgument:
    """An InvalidArgument that carries both sizes."""
    error = InvalidArgument(f"{what}: expected {expected}, got {actual}")
    error.expected, error.actual = expected, actual
    return error
