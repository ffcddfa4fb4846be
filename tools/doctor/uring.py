# SPDX-License-Identifier: Apache-2.0
"""What io_uring grants here, in the words of the doctor."""

from __future__ import annotations

from .probe import Options, Probe, size

BUFFER = 16 << 20
NEEDED = {"nop", "read", "write", "read_fixed", "write_fixed", "async_cancel"}
FALL_BACK = "the tier reads with a pool of blocking threads instead"


def io_uring(_: Options) -> Probe:
    try:
        from kvshm.uring import probe

        found = probe(BUFFER)
    except ImportError as e:
        return Probe("io_uring", "skip", str(e))
    if not found.available:
        return Probe("io_uring", "warn", found.reason, FALL_BACK, _fix(found.sysctl, found.seccomp))
    parts = [f"{found.opcode_count} opcodes"]
    parts += [word for word, has in (
        ("SINGLE_ISSUER", found.single_issuer), ("DEFER_TASKRUN", found.defer_taskrun),
        ("registered files", found.registered_files)) if has]
    bounded = found.buffer_bytes < found.buffer_bytes_tried
    if found.registered_buffers:
        parts.append(f"buffers up to {size(found.buffer_bytes)}{'' if bounded else ' and more'}")
    text = ", ".join(parts + found.problems)
    if not found.registered_files:
        return Probe("io_uring", "warn", text, f"a ring cannot hold its device byte: {FALL_BACK}",
                     "use Linux 6.1 or newer")
    if not NEEDED <= set(found.opcodes) or not found.defer_taskrun:
        return Probe("io_uring", "warn", text, "slower rings", "use Linux 6.1 or newer")
    if bounded or not found.registered_buffers:
        return Probe("io_uring", "warn", text, "larger arenas are read unregistered: more CPU",
                     "ulimit -l unlimited, or docker run --ulimit memlock=-1")
    return Probe("io_uring", "ok", text)


def _fix(sysctl: int | None, seccomp: int) -> str:
    if sysctl:
        return "sysctl -w kernel.io_uring_disabled=0"
    if seccomp == 2:
        return "docker run --security-opt seccomp=PROFILE that allows the three io_uring calls"
    return "use Linux 6.1 or newer"
