# SPDX-License-Identifier: Apache-2.0
"""Where a figure was taken: processor, kernel, page sizes, load, commit."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import kvshm


def facts(root: Path | None) -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "memory_bytes": meminfo("MemTotal"),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "shmem_enabled": chosen("shmem_enabled"),
        "anonymous_huge_pages": chosen("enabled"),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "kvshm": kvshm.__version__,
        "commit": commit(root),
    }


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text()
    fields = {name: m[1] for name in ("model name", "cpu family", "model")
              if (m := re.search(rf"^{name}\s*: (.*)$", cpuinfo, re.M))}
    family = ", ".join(f"{name.removeprefix('cpu ')} {fields[name]}"
                       for name in ("cpu family", "model") if name in fields)
    return f"{fields.get('model name', platform.machine())} ({family})"


def meminfo(name: str) -> int:
    m = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    return int(m[1]) * 1024 if m else 0


def chosen(setting: str) -> str:
    path = Path("/sys/kernel/mm/transparent_hugepage", setting)
    m = re.search(r"\[(\w+)\]", path.read_text()) if path.exists() else None
    return m[1] if m else "absent"


def commit(root: Path | None) -> str:
    """Of the checkout; with a + where the working tree differs from it."""
    if root is None:
        return "unknown"

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True,
                              timeout=30)
        return done.stdout.strip() if done.returncode == 0 else ""

    sources = ("cpp", "include", "src", "tools", "CMakeLists.txt")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", *sources)
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+" if changed else "")
