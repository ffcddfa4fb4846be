# SPDX-License-Identifier: Apache-2.0
"""Whether this is a container, and what it hides from the other engines of the host."""

from __future__ import annotations

import os
from pathlib import Path

from .probe import Options, Probe
from .proc import status, text_of

# The inode numbers of a host's own namespaces are fixed in the kernel.
HOST = {"pid": 4026531836, "ipc": 4026531839, "user": 4026531837}
SECCOMP = {"0": "none", "1": "strict", "2": "filter"}


def container(_: Options) -> Probe:
    own = [name for name in HOST if _inode(name) != HOST[name]]
    kind = _kind()
    parts = [kind or "no container"]
    parts.append(f"own {', '.join(own)} namespace" if own else "the host's pid, ipc and user")
    parts.append(f"seccomp {SECCOMP.get(status('Seccomp'), 'unknown')}")
    parts.append(f"cgroup {_cgroup()}")
    found = "; ".join(parts)
    if "ipc" in own:
        costs = "the shm mount is this container's own: engines elsewhere see other arenas"
        return Probe("container", "warn", found, costs,
                     "docker run --ipc=host, or --ipc=container:NAME with the other engines")
    return Probe("container", "ok", found)


def _inode(name: str) -> int | None:
    try:
        return os.stat(f"/proc/self/ns/{name}").st_ino
    except OSError:
        return HOST[name]  # not to be told from the host's


def _kind() -> str:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    return os.environ.get("container", "")


def _cgroup() -> str:
    lines = (text_of("/proc/self/cgroup") or "").splitlines()
    paths = {line.split(":", 2)[2] for line in lines}
    version = "v2" if len(lines) == 1 else "v1"
    return f"{version}, limited" if paths - {"/"} else version
