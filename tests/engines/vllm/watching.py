# SPDX-License-Identifier: Apache-2.0
"""An arena seen by the tests' own process, beside the engines in it."""
from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import kvshm
import numpy as np
from kvshm.tools.vllm.client import Answer, Engine, Request
from support.cli import kvshm_cli

Digests = dict[bytes, str]  # of a block's bytes, by key


def prompt(seed: int, tokens: int = 1000) -> list[int]:
    some = random.Random(seed)
    return [some.randrange(2048) for _ in range(tokens)]


def one(engine: Engine, request: Request) -> Answer:
    (answer,) = engine.generate([request])
    return answer


def until(what: Callable[[], object], limit: float) -> bool:
    """Whether it comes true within so many seconds."""
    end = time.monotonic() + limit
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Watch:
    def __init__(self, arena: kvshm.Arena) -> None:
        self.arena = arena

    def digests(self) -> Digests:
        """Every block that a look-up finds now."""
        known = (self.arena.block(i) for i in range(self.arena.blocks))
        keys = [one.key for one in known if one.state in (kvshm.State.READY,
                                                          kvshm.State.READY_LAST)]
        found: Digests = {}
        for key in keys:
            with self.arena.match([key], touch=False) as lease:
                if lease:
                    found[key] = hashlib.blake2b(np.asarray(lease.view(0))).hexdigest()
        return found

    def of(self, pid: int) -> list[kvshm.ProcessInfo]:
        return [one for one in self.arena.processes() if one.pid == pid]

    def in_use(self) -> tuple[int, int]:
        """Blocks that are held, and that are being filled, by anybody."""
        stats = self.arena.stats()
        return stats.blocks_held, stats.blocks_filling

    def is_clean(self) -> bool:
        """`kvshm verify`, from outside."""
        told = kvshm_cli("verify", self.arena.name)
        assert told.code == 0, told.out + told.err
        return True


@contextmanager
def watch(name: str) -> Iterator[Watch]:
    """Of an arena that an engine made. It goes when the test is over."""
    arena = kvshm.Arena.attach(name, label="test", pin="off")
    try:
        yield Watch(arena)
    finally:
        arena.close()
        kvshm.remove(name, force=True)
