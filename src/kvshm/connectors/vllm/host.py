# SPDX-License-Identifier: Apache-2.0
"""The scheduler's attachment to the arena, over its removal and the epochs of its namespace."""

from __future__ import annotations

import logging
import time

import kvshm

from .metadata import ArenaRef

log = logging.getLogger("vllm.kvshm")

RETRY = 10.0  # seconds between attempts to open an arena that went away, or its tier


DRAINING = 3.0  # seconds that the end of an engine may wait for its last writes
CLEARING = 5.0  # seconds in which the file must have been told of a reset


def join_tier(arena: kvshm.Arena, config: kvshm.Config) -> bool:
    """Opens the arena's tier, if the configuration has one. Raises what Arena.open_tier raises."""
    wanted = config.tier_arguments()
    if wanted is None:
        return False
    paths, size, options = wanted
    arena.open_tier(paths, size, **options)
    return True


def leave(arena: kvshm.Arena, disk: bool, timeout: float = 10.0) -> None:
    """At the end of an engine: what it stored last is still written down."""
    try:
        if disk and not arena.tier_drain(DRAINING):
            log.warning("kvshm: %s: the last blocks are not on disk", arena.name)
    except kvshm.ArenaReplaced:
        pass  # removed: nobody asks for them, and the next arena waits for the file
    finally:
        arena.close(timeout=timeout)


class Host:
    """Threads: the scheduler's only."""

    def __init__(self, config: kvshm.Config, identity: kvshm.Identity, block_bytes: int,
                 label: str) -> None:
        """Opens the arena, or creates it; with size 0 there is none. Raises what Arena.open
        raises: at the start of an engine a cache that cannot be had is an error, later a miss."""
        self._config, self._base, self._block_bytes = config, identity, block_bytes
        self._label = label
        self._retry_at = self._tier_at = 0.0
        self._off = config.size == 0
        self.disk = False  # the arena has its tier
        self.identity = identity
        self.arena: kvshm.Arena | None = None
        self.ref: ArenaRef | None = None
        if not self._off:
            self.arena = self._open()
            self.ref = self._refer(self.arena)
            try:
                self._open_tier(self.arena)
            except BaseException:
                self.arena.close()
                raise

    def _open(self) -> kvshm.Arena:
        config = self._config
        return kvshm.Arena.open(
            config.name, size=config.size, block_bytes=self._block_bytes, identity=self._base,
            dir=config.dir, label=self._label, pin=config.pin, huge=config.huge,
            numa=config.numa, quota=config.quota_blocks(self._block_bytes), timeout=config.timeout)

    def _open_tier(self, arena: kvshm.Arena) -> None:
        self.disk = join_tier(arena, self._config)

    def _refer(self, arena: kvshm.Arena) -> ArenaRef:
        self.identity = self._base.with_epoch(arena.epoch)
        return ArenaRef(arena.name, self._config.dir, bytes(arena.info().uuid),
                        self._block_bytes, self.identity)

    def ready(self) -> kvshm.Arena | None:
        """The arena, if there is one. One that was removed is opened anew, at intervals; and its
        tier, whose file the workers may have for a while after that."""
        if self.arena is None and not self._off and time.monotonic() >= self._retry_at:
            try:
                self.arena = self._open()
                self.ref = self._refer(self.arena)
            except kvshm.Error:
                self._retry_at = time.monotonic() + RETRY
        if self._config.tier and not self.disk and self.arena is not None and (
                time.monotonic() >= self._tier_at):
            self._tier_at = time.monotonic() + RETRY
            try:
                self._open_tier(self.arena)
            except kvshm.Error as error:
                log.warning("kvshm: going on without the disk: %s", error)
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
        self.disk = False
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
        """A new epoch for every process of the arena; what the old one left unheld is freed. False:
        the disk could not be told, so that a reboot could bring the old one back."""
        arena = self.arena
        if arena is None:
            return True
        arena.bump_epoch()
        arena.clear()
        if self.disk:
            try:
                arena.tier_clear(timeout=CLEARING)
            except kvshm.Busy:
                pass  # what is read or written now is of the old epoch, in the file, too
            except kvshm.TimedOut as error:
                log.warning("kvshm: %s", error)
                return False
        return True

    def close(self) -> None:
        if self.arena is not None:
            leave(self.arena, self.disk)
            self.arena, self.disk = None, False

    def describe(self) -> str:
        if self.arena is None:
            return "off"
        info, tier = self.arena.info(), self.arena.tier
        disk = "" if tier is None else (
            f"disk {tier.path}, {tier.slots} slots by {tier.engine}"
            f"{f' ({tier.why})' if tier.why else ''}, ")
        return (f"arena {self.arena.name}, {info.blocks} blocks of {info.block_bytes} bytes, "
                f"{disk}epoch {self.identity.epoch}, {self.identity.text}")
