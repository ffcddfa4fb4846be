# SPDX-License-Identifier: Apache-2.0
"""What every probe answers."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Status = Literal["ok", "warn", "fail", "skip"]


@dataclass(frozen=True)
class Probe:
    """warn: it works, at a cost. fail: kvshm must not, or cannot, be used like this."""

    name: str
    status: Status
    found: str
    costs: str = ""  # what the finding costs you
    fix: str = ""  # the line that mends it

    def asdict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Options:
    arenas: Path = Path("/dev/shm")  # where arenas lie
    tier: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))  # where a tier would


def size(count: int) -> str:
    """1536 -> "1.5 KiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
