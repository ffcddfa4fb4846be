# SPDX-License-Identifier: Apache-2.0
"""The scheduler's attachment to the arena, over its removal and the epochs of its namespace."""

from __future__ import annotations

import time

import kvshm

from .metadata import ArenaRef

RETRY = 10.0  # seconds between attempts to open an arena that went away


class Host:
    """Threads: the scheduler's only."""

    def __init__(self, config: kvshm.Config, identity: kvshm.Identity, block_bytes: int,
                 label: str) -> None:
        """Opens the arena, or creates it; with size 0 there is none. Raises what Arena.open
        raises: at the start of an engine a cache that cannot be had is an error, later a miss."""
        self._config, self._base, self._block_bytes = config, identity, block_bytes
        self._label = label
        self._retry_at = 0.0
        self._off = config.size == 0
        self.identity = identity
        self.arena: kvshm.Arena | None = None
        self.ref: ArenaRef | None = None
        if not self._off:
            self.arena = self._open()
            self.ref = self._refer(self.arena)

    def _open(self) -> kvshm.Arena:
        config = self._config
        return kvshm.Arena.open(
            config.name, size=config.size, block_bytes=self._block_bytes, identity=self._base,
            dir=config.dir, label=self._label, pin=config.pin, huge=config.huge,
            numa=config.numa, quota=config.quota_blocks(self._block_bytes), timeout=config.timeout)

    def _refer(self, arena: kvshm.Arena) -> ArenaRef:
        self.identity = self._base.with_epoch(arena.epoch)
        return ArenaRef(arena.name, self._config.dir, bytes(arena.info().uuid),
                        self._block_bytes, self.identity)

    def ready(self) -> kvshm.Arena | None:
        """The arena, if there is one. One that was removed is opened anew, at intervals."""
        if self.arena is None and not self._off and time.monotonic() >= self._retry_at:
            try:
                self.arena = self._open()
                self.ref = self._refer(self.arena)
            except kvshm.Error:
                self._retry_at = time.monotonic() + RETRY
        return self.arena

    def renewed(self) -> bool:
        """Whether somebody began a new epoch since the last look; `identity` is of it then."""
        if self.arena is None or self.arena.epoch == self.identity.epoch:
            return False
        self.ref = self._refer(self.arena)
        return True

    def lost(self) -> None:
        """A call said that the arena was removed. Its holds go with it."""
        arena, self.arena = self.arena, None
        self._retry_at = time.monotonic() + RETRY
        if arena is not None:
            try:
                arena.close(timeout=1.0)
            except kvshm.Error:
                pass  # what still runs in it ends with the process

    def turn_off(self) -> None:
        """For the rest of the engine's life."""
        self._off = True
        self.lost()

    def reset(self) -> bool:
        """A new epoch for every process of the arena; what the old one left unheld is freed."""
        arena = self.arena
        if arena is None:
            return True
        arena.bump_epoch()
        arena.clear()
        return True

    def close(self) -> None:
        if self.arena is not None:
            self.arena.close()
            self.arena = None

    def describe(self) -> str:
        if self.arena is None:
            return "off"
        info = self.arena.info()
        return (f"arena {self.arena.name}, {info.blocks} blocks of {info.block_bytes} bytes, "
                f"epoch {self.identity.epoch}, {self.identity.text}")
