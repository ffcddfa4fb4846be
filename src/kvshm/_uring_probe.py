# SPDX-License-Identifier: Apache-2.0
"""Asks the kernel what io_uring it grants here, by doing it, and says why not."""

from __future__ import annotations

import errno
import os
import platform
import re
import resource
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvshm.uring import Ring, aligned_buffer, load

PAGE = 4096
CAP_IPC_LOCK, CAP_SYS_ADMIN = 14, 21


@dataclass
class UringProbe:
    """Found, not assumed: each True was tried in this process."""

    available: bool = False
    errno: int = 0
    reason: str = ""  # why it is not available
    kernel: str = ""
    sysctl: int | None = None  # kernel.io_uring_disabled, None where there is none
    seccomp: int = 0  # of this process: 0 none, 1 strict, 2 filter
    single_issuer: bool = False
    defer_taskrun: bool = False
    registered_files: bool = False
    registered_buffers: bool = False
    buffer_bytes: int = 0  # the biggest buffer that could be registered
    buffer_bytes_tried: int = 0  # equal to buffer_bytes: no limit was met
    memlock_bytes: int | None = None  # RLIMIT_MEMLOCK, None is unlimited
    memlock_applies: bool = True  # False with CAP_IPC_LOCK
    features: list[str] = field(default_factory=list)
    opcodes: list[str] = field(default_factory=list)  # those that have a name here
    opcode_count: int = 0  # all that the kernel supports
    problems: list[str] = field(default_factory=list)  # of what should work and did not

    def asdict(self) -> dict[str, Any]:
        return asdict(self)


def probe_uring(buffer_bytes: int) -> UringProbe:
    binding = load()
    found = UringProbe(kernel=platform.release(), buffer_bytes_tried=buffer_bytes)
    found.sysctl = _sysctl("io_uring_disabled")
    found.seccomp = int(_status("Seccomp") or 0)
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    found.memlock_bytes = None if soft == resource.RLIM_INFINITY else soft
    found.memlock_applies = not _capable(CAP_IPC_LOCK)
    try:
        ring = Ring(8)
    except OSError as e:
        found.errno = e.errno or 0
        found.reason = _why(found)
        return found
    with ring:
        _ask(found, ring, binding)
    return found


def _ask(found: UringProbe, ring: Ring, binding: Any) -> None:
    lib = binding.lib
    if not _round_trip(found, ring):
        return
    found.available = True
    found.single_issuer = bool(ring.flags & lib.IORING_SETUP_SINGLE_ISSUER)
    found.defer_taskrun = bool(ring.flags & lib.IORING_SETUP_DEFER_TASKRUN)
    names = [n for n in dir(lib) if n.startswith("IORING_FEAT_")]
    found.features = [n[12:].lower() for n in names if ring.features & getattr(lib, n)]
    _opcodes(found, ring, binding)
    _files(found, ring)
    _buffers(found, ring)


def _round_trip(found: UringProbe, ring: Ring) -> bool:
    """A filter may let io_uring_setup through and refuse io_uring_enter."""
    try:
        ring.start_nop(1)
        ring.wait(2.0)
        return True
    except OSError as e:
        found.errno, found.reason = e.errno or 0, f"io_uring_setup works, {e.strerror}"
        return False


def _opcodes(found: UringProbe, ring: Ring, binding: Any) -> None:
    lib = binding.lib
    answer = lib.io_uring_get_probe_ring(ring._ring)
    if answer == binding.ffi.NULL:
        found.problems.append("the kernel does not list its opcodes (before 5.6)")
        return
    has = {op for op in range(answer.last_op + 1) if lib.io_uring_opcode_supported(answer, op)}
    lib.io_uring_free_probe(answer)
    named = [n for n in dir(lib) if n.startswith("IORING_OP_")]
    found.opcodes = sorted(n[10:].lower() for n in named if getattr(lib, n) in has)
    found.opcode_count = len(has)


def _files(found: UringProbe, ring: Ring) -> None:
    fd = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        ring.register_files([fd])
        found.registered_files = True
    except OSError as e:
        found.problems.append(f"registered files: {e.strerror}")
    finally:
        os.close(fd)


def _buffers(found: UringProbe, ring: Ring) -> None:
    """The biggest buffer by doubling, then by halving the gap: about 30 tries at most."""
    limit = found.buffer_bytes_tried // PAGE
    with aligned_buffer(limit * PAGE) as memory:
        first = _try_buffer(ring, memory, 1)
        if first:
            found.problems.append(f"registered buffers: {os.strerror(first)}")
            return
        found.registered_buffers = True
        good, bad = 1, limit + 1
        step = 2
        while good < limit and bad > limit:
            pages = min(good * step, limit)
            if _try_buffer(ring, memory, pages):
                bad = pages
            else:
                good = pages
        while bad - good > 1 and bad <= limit:
            pages = (good + bad) // 2
            if _try_buffer(ring, memory, pages):
                bad = pages
            else:
                good = pages
    found.buffer_bytes = good * PAGE


def _try_buffer(ring: Ring, memory: Any, pages: int) -> int:
    with memoryview(memory)[: pages * PAGE] as view:
        try:
            ring.register_buffers([view])
        except OSError as e:
            return e.errno or errno.EIO
        ring.unregister_buffers()
        return 0


def _why(found: UringProbe) -> str:
    """The likeliest reason of a refused io_uring_setup, from what /proc shows."""
    name = errno.errorcode.get(found.errno, str(found.errno))
    if found.sysctl == 2:
        return f"{name}: sysctl kernel.io_uring_disabled is 2, refused to everybody"
    if found.sysctl == 1 and not _capable(CAP_SYS_ADMIN) and not _in_uring_group():
        return f"{name}: sysctl kernel.io_uring_disabled is 1, and this user is not in its group"
    if found.errno == errno.ENOSYS and found.seccomp != 2:
        return f"{name}: kernel {found.kernel} has no io_uring"
    if found.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS) and found.seccomp == 2:
        return f"{name}: the container's seccomp filter refuses io_uring"
    if found.errno in (errno.EPERM, errno.EACCES):
        return f"{name}: refused, by a security module perhaps"
    if found.errno == errno.ENOMEM:
        return f"{name}: RLIMIT_MEMLOCK leaves no room for the ring"
    return f"{name}: {os.strerror(found.errno)}"


def _sysctl(name: str) -> int | None:
    try:
        return int(Path("/proc/sys/kernel", name).read_text())
    except (OSError, ValueError):
        return None


def _status(key: str) -> str:
    text = Path("/proc/self/status").read_text()
    hit = re.search(rf"^{key}:\s*(\S+)", text, re.M)
    return hit.group(1) if hit else ""


def _capable(bit: int) -> bool:
    return bool(int(_status("CapEff") or "0", 16) >> bit & 1)


def _in_uring_group() -> bool:
    return _sysctl("io_uring_group") in {os.getegid(), *os.getgroups()}
