# SPDX-License-Identifier: Apache-2.0
"""Kernel, processor, NUMA nodes, memory."""

from __future__ import annotations

import errno
import mmap
import platform
import re
from pathlib import Path

from . import libc
from .probe import Options, Probe, size
from .proc import meminfo, text_of

NODES = Path("/sys/devices/system/node")


def kernel(_: Options) -> Probe:
    release = platform.release()
    hit = re.match(r"(\d+)\.(\d+)", release)
    version = (int(hit.group(1)), int(hit.group(2))) if hit else (0, 0)
    upgrade = "use Linux 6.1 or newer"
    if version < (3, 15):
        return Probe("kernel", "fail", release, "no open-file-description locks", upgrade)
    if version < (5, 14):
        return Probe("kernel", "warn", release, "no MADV_POPULATE_WRITE, old io_uring", upgrade)
    if version < (6, 1):
        return Probe("kernel", "warn", release, "io_uring without DEFER_TASKRUN: slower", upgrade)
    return Probe("kernel", "ok", release)


def cpu(_: Options) -> Probe:
    machine, text = platform.machine(), text_of("/proc/cpuinfo") or ""
    flags = set(re.findall(r"\bavx2\b|\bavx512f\b", text))
    wide = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    if machine != "x86_64":
        return Probe("cpu", "warn", machine, "memory order was proven on x86_64 only")
    return Probe("cpu", "ok", f"{machine}, {wide} for copies")


def memory(_: Options) -> Probe:
    available = meminfo("MemAvailable") or 0
    limit = _cgroup_limit()
    found = f"{size(available)} available"
    if limit is None:
        return Probe("memory", "ok", f"{found}, no cgroup limit seen")
    found += f", cgroup limit {size(limit)}"
    if limit < available:
        costs = "arena pages count against the limit; beyond it the kernel kills"
        return Probe("memory", "warn", found, costs, "docker run --memory=SIZE above the arena's")
    return Probe("memory", "ok", found)


def _cgroup_limit() -> int | None:
    """The tightest limit from this process's cgroup upwards, version 2 or 1."""
    limits = []
    for line in (text_of("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = Path("/sys/fs/cgroup"), "memory.max"
        elif "memory" in controllers.split(","):
            root, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        else:
            continue
        at = root / path.lstrip("/")
        for folder in (at, *at.parents):
            value = text_of(str(folder / name))
            if value and value.isdigit() and int(value) < 1 << 60:  # version 1: huge means none
                limits.append(int(value))
            if folder == root:
                break
    return min(limits, default=None)


def numa(_: Options) -> Probe:
    nodes = sorted(int(p.name[4:]) for p in NODES.glob("node[0-9]*"))
    if not nodes:
        return Probe("numa", "ok", "no NUMA")
    parts = []
    for node in nodes:
        total = re.search(r"MemTotal:\s*(\d+)", text_of(f"{NODES}/node{node}/meminfo") or "")
        parts.append(f"node {node}: {size(int(total.group(1)) * 1024) if total else '?'}")
    found = ", ".join(parts)
    refused = _binding_refused(nodes[0])
    if refused and len(nodes) > 1:
        costs = "arena pages lie where the first toucher runs"
        return Probe("numa", "warn", f"{found}; mbind: {refused}", costs,
                     "docker run --cap-add SYS_NICE")
    return Probe("numa", "ok", f"{found}; mbind {refused or 'works'}")


def _binding_refused(node: int) -> str:
    address = libc.map_file(-1, mmap.PAGESIZE, libc.PROT_READ | libc.PROT_WRITE,
                            libc.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        libc.bind_memory(address, mmap.PAGESIZE, node)
        return ""
    except OSError as e:
        return errno.errorcode.get(e.errno or 0, "refused")
    finally:
        libc.unmap(address, mmap.PAGESIZE)
