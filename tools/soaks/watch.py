# SPDX-License-Identifier: Apache-2.0
"""What a process holds, as the kernel counts it: whether it grows with the work it has done."""

from __future__ import annotations

import os
from dataclasses import dataclass

FDS, THREADS, MIB = 4, 2, 64  # that may come after the first answers: pools, workspaces


@dataclass(frozen=True)
class Sample:
    fds: int
    threads: int
    private_kib: int  # the arena's pages are not counted


def sample(pid: int) -> Sample | None:
    """None: it is gone."""
    try:
        fds = len(os.listdir(f"/proc/{pid}/fd"))
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            rows = dict(line.split(":", 1) for line in status if ":" in line)
    except OSError:
        return None
    if "RssAnon" not in rows:
        return None  # a zombie
    return Sample(fds, int(rows["Threads"]), int(rows["RssAnon"].split()[0]))


@dataclass
class Watch:
    """Of one process: from its first answers to now."""

    first: Sample | None = None
    last: Sample | None = None
    samples: int = 0

    def note(self, now: Sample | None) -> None:
        if now is None:
            return
        self.first = self.first or now
        self.last = now
        self.samples += 1

    def grown(self) -> dict[str, float]:
        if self.first is None or self.last is None:
            return {"fds": 0, "threads": 0, "private_mib": 0.0}
        return {"fds": self.last.fds - self.first.fds,
                "threads": self.last.threads - self.first.threads,
                "private_mib": (self.last.private_kib - self.first.private_kib) / 1024}

    def steady(self) -> bool:
        grown = self.grown()
        return (grown["fds"] <= FDS and grown["threads"] <= THREADS
                and grown["private_mib"] <= MIB)
