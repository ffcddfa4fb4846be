# SPDX-License-Identifier: Apache-2.0
"""What every target's measurement is given: how much to do, and the processes to do it with."""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass

from . import arenas, machine
from .mounts import HUGE, PAGES, Mounts
from .native import BenchError, Facts, Role
from .progress import Progress

GIB = 1 << 30
PAGE_BYTES = {HUGE: 2 << 20}
SPARE_BYTES = 2 * GIB  # what others on the machine keep

_numbers = itertools.count()


@dataclass(frozen=True)
class Scale:
    blocks: int = 1_000_000
    rounds: int = 10
    round_ms: int = 100
    attach_bytes: int = 8 * GIB
    copy_blocks: int = 160
    kills: int = 5
    chain: int = 512

    @property
    def small(self) -> int:
        return max(self.blocks // 100, 2 * self.chain)

    @property
    def large(self) -> int:
        return self.blocks * 10


QUICK = Scale(blocks=100_000, rounds=3, round_ms=30, attach_bytes=GIB // 4, copy_blocks=48,
              kills=3)


@dataclass(frozen=True)
class Stored:
    """An arena that another process made and filled."""

    name: str
    folder: str
    pages: str
    facts: Facts
    pids: frozenset[int]  # of who keeps it

    def args(self) -> dict[str, object]:
        return {"name": self.name, "dir": self.folder}


@dataclass
class Bench:
    program: str
    mounts: Mounts
    scale: Scale
    progress: Progress

    @property
    def pages(self) -> list[str]:
        """The page sizes that there are, the better one first."""
        return [pages for pages in PAGES if pages in self.mounts.folders]

    @property
    def ms(self) -> int:
        return self.scale.round_ms

    def arena(self) -> str:
        """The name of a new one; arenas.swept() removes it if who made it could not."""
        return f"{arenas.PREFIX}{os.getpid()}-{next(_numbers)}"

    def role(self, stack: ExitStack, kind: str, **args: object) -> Role:
        given = [f"{name}={value}" for name, value in args.items() if value != ""]
        one = Role([self.program, kind, *given])
        return stack.enter_context(one)

    def python(self, stack: ExitStack, kind: str, **args: object) -> Role:
        given = [f"{name}={value}" for name, value in args.items() if value != ""]
        one = Role([sys.executable, "-m", "kvshm.tools.benchmarks.pyside", kind, *given])
        return stack.enter_context(one)

    def store(self, stack: ExitStack, pages: str, **args: object) -> Stored:
        """Args are those of the role `store`; blocks without data unless it is told otherwise."""
        folder = self.mounts.folders[pages]
        name = self.arena()
        role = self.role(stack, "store", name=name, dir=folder, huge=int(pages == HUGE),
                         **({"chain": self.scale.chain} | args))
        found = role.facts["page_bytes"]
        if found != PAGE_BYTES.get(pages, os.sysconf("SC_PAGE_SIZE")):
            raise BenchError(f"wanted {pages} pages in {folder or 'the shm mount'}, got {found}")
        return Stored(name, folder, pages, role.facts, frozenset({role.pid}))


def room_for(wanted: int) -> str:
    """Why so many bytes cannot be used now; "" if they can."""
    free = machine.meminfo("MemAvailable") - SPARE_BYTES
    if wanted <= free:
        return ""
    return f"{wanted / GIB:.1f} GiB wanted, {max(free, 0) / GIB:.1f} GiB free"
