# SPDX-License-Identifier: Apache-2.0
"""The arena from outside the workers: made before them, watched, removed after them."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from typing import Any

import kvshm

from .asking import DemoError
from .identity import identity_of
from .settings import Settings

POLL = 0.01


class HostError(DemoError):
    """No arena could be made; the message says why and what helps."""


def demo_name() -> str:
    """For an arena that nobody else uses."""
    return f"demo-{os.getpid()}-{secrets.token_hex(3)}"


class Host:
    def __init__(self, name: str, directory: str | None = None,
                 arena: kvshm.Arena | None = None) -> None:
        """Without an arena that of this name is looked for when it is first needed: its users
        make it."""
        self.name = name
        self.directory = directory
        self._found = arena

    @classmethod
    def create(cls, settings: Settings, blocks: int, size: str) -> Host:
        """Either a number of blocks, or (0) as many as fit into `size` bytes."""
        block_bytes = settings.part_bytes
        try:
            arena = kvshm.Arena.create(
                demo_name(),
                size=size if not blocks else 0,
                blocks=blocks,
                block_bytes=block_bytes,
                identity=identity_of(settings),
                dir=settings.directory,
                label="demo",
            )
        except kvshm.Error as error:
            asked = f"{blocks} blocks" if blocks else f"{size}"
            raise HostError(
                f"no arena of {asked} (a block is {block_bytes} bytes): {error}. "
                "--blocks or --size asks for less, --dir names another tmpfs"
            ) from error
        return cls(str(arena.name), settings.directory, arena)

    @property
    def _arena(self) -> kvshm.Arena:
        if self._found is None:
            try:
                self._found = kvshm.Arena.attach(self.name, dir=self.directory, label="demo")
            except kvshm.Error as error:
                raise HostError(f"the engines made no arena {self.name}: {error}") from error
        return self._found

    @property
    def blocks(self) -> int:
        return int(self._arena.blocks)

    def stats(self) -> dict[str, int]:
        return dict(self._arena.stats())

    def bytes_copied(self) -> int:
        """Through kvshm, into blocks and out of them, by all processes, the dead ones too."""
        stats = self.stats()
        return stats["copy_in_bytes_total"] + stats["copy_out_bytes_total"]

    def has_slot(self, pid: int) -> bool:
        return any(one.pid == pid for one in self._arena.processes())

    def wait_gone(self, pid: int, limit: float) -> bool:
        """Until neither the process nor another dead one (it may have had children) has a slot: it
        is given back when nothing that it held is left."""
        def gone() -> bool:
            return all(one.alive and one.pid != pid for one in self._arena.processes())

        return _within(limit, gone)

    def broken_when_quiet(self, limit: float) -> list[str]:
        """Invariants still broken when no request is in flight; none may be, nor a held block."""
        found: list[str] = []

        def clean() -> bool:
            stats = self.stats()
            found[:] = [str(broken) for broken in self._arena.is_valid()]
            found.extend(
                f"{stats[name]} blocks {name[7:]} though no request is in flight"
                for name in ("blocks_filling", "blocks_evicting", "blocks_held")
                if stats[name]
            )
            return not found

        _within(limit, clean)
        return found

    def summary(self) -> dict[str, Any]:
        stats = self.stats()
        return {
            "name": self.name,
            "blocks": self.blocks,
            "block_bytes": int(self._arena.block_bytes),
            "registered": stats["registered_total"],
            "evicted": stats["evicted_total"],
            "loaded": stats["tier_loaded_total"],
            "prefetched": stats["tier_prefetched_total"],
        }

    def close(self, keep: bool) -> None:
        if self._found is not None:
            self._found.close()
        if not keep:
            try:
                kvshm.remove(self.name, dir=self.directory, force=True)
            except kvshm.ArenaNotFound:
                pass  # its users never made it


def _within(limit: float, done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + limit
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True
