# SPDX-License-Identifier: Apache-2.0
"""Resource limits of this user."""

from __future__ import annotations

import resource

from .probe import Options, Probe, size
from .proc import CAP_IPC_LOCK, capable

ENOUGH_FILES = 1024


def memlock(_: Options) -> Probe:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Probe("memlock", "ok", "unlimited")
    if capable(CAP_IPC_LOCK):
        return Probe("memlock", "ok", f"{size(soft)}, does not apply (CAP_IPC_LOCK)")
    raisable = hard == resource.RLIM_INFINITY
    fix = "ulimit -l unlimited" if raisable else (
        "'* - memlock unlimited' in /etc/security/limits.conf, or docker run --ulimit memlock=-1")
    costs = "an arena beyond it stays unpinned, and io_uring registers no more than that"
    return Probe("memlock", "warn", size(soft), costs, fix)


def nofile(_: Options) -> Probe:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        costs = "an engine with many sockets leaves none for rings and tier files"
        return Probe("nofile", "warn", str(soft), costs, f"ulimit -n {ENOUGH_FILES * 16}")
    return Probe("nofile", "ok", "unlimited" if soft == resource.RLIM_INFINITY else str(soft))
