# SPDX-License-Identifier: Apache-2.0
"""What /proc says about this process and its mounts."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

CAP_IPC_LOCK = 14


def status(key: str) -> str:
    text = Path("/proc/self/status").read_text()
    hit = re.search(rf"^{key}:\s*(.*)$", text, re.M)
    return hit.group(1).strip() if hit else ""


def capable(bit: int) -> bool:
    return bool(int(status("CapEff") or "0", 16) >> bit & 1)


def meminfo(key: str) -> int | None:
    """Bytes, or a plain count where /proc/meminfo has one."""
    text = Path("/proc/meminfo").read_text()
    hit = re.search(rf"^{key}:\s*(\d+)( kB)?$", text, re.M)
    return int(hit.group(1)) * (1024 if hit.group(2) else 1) if hit else None


def text_of(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


@dataclass(frozen=True)
class Mount:
    point: str
    kind: str
    options: str


def mount_of(path: Path) -> Mount:
    """The mount a path lies on: the last one, with the longest point, that contains it."""
    real = os.path.realpath(path)
    best = Mount("/", "unknown", "")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        point = left.split()[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best.point):
            kind, _, options = right.split(" ", 2)
            best = Mount(point, kind, options)
    return best


def mapping_kb(address: int, key: str) -> int | None:
    """A field of the smaps entry that holds the address, in KiB."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if head:
            inside = int(head.group(1), 16) <= address < int(head.group(2), 16)
        elif inside and line.startswith(key + ":"):
            return int(line.split()[1])
    return None
