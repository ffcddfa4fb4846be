# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's side keeps of a request between its arrival and its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import kvshm

from .disk import Fetch
from .groups import Group
from .keys import GroupKeys
from .lookup import Hold

MAX_SAVE_FAILURES = 3  # then nothing more of a request is saved


@dataclass
class Figures:
    """For the line that is logged at the end of a request."""

    admitted: bool = False
    asked: int = 0
    local: int = 0
    memory: int = 0
    disk: int = 0
    disk_seconds: float = 0.0
    load_seconds: float = 0.0
    load_bytes: int = 0
    saved_blocks: int = 0
    failed_blocks: int = 0

    def line(self, request_id: str) -> str:
        computed = max(0, self.asked - self.local - self.memory - self.disk)
        text = (f"kvshm: {request_id}: {self.asked} tokens asked, {self.local} local, "
                f"{self.memory} memory, {self.disk} disk, {computed} computed")
        if self.disk_seconds:
            text += f"; disk {self.disk_seconds * 1e3:.2f} ms"
        if self.load_bytes:
            rate = self.load_bytes / max(self.load_seconds, 1e-9) / 1e9
            text += f"; load {self.load_seconds * 1e3:.2f} ms, {rate:.1f} GB/s"
        if self.failed_blocks:
            text += f"; {self.failed_blocks} blocks failed to load"
        return text + f"; {self.saved_blocks} blocks saved"


class RequestState:
    def __init__(self, request: Any, groups: Sequence[Group], identity: kvshm.Identity,
                 adapter: bytes) -> None:
        self.request = request
        self.figures = Figures()
        self.hold: Hold | None = None  # looked up, not yet asked to be loaded
        self.fetch: Fetch | None = None  # what is on its way from the disk
        self.local = 0  # tokens in the engine's own cache at the last look-up
        self.refused = False  # a load failed: it is computed, not tried again
        self.save_failures = 0
        self.table: Any = None  # block ids by group, as last told by a vLLM before 0.32
        self.jobs = 0  # loads and saves that have not been reported
        self.ended = False
        self.noted = False  # its look-up is written down
        self._groups, self._adapter = groups, adapter
        self.bind(identity)

    def bind(self, identity: kvshm.Identity) -> None:
        """Begin anew under an identity (a new epoch): other keys, nothing held, nothing saved."""
        self.drop_hold()
        self.fetched = False  # from the disk, once before each admission
        # By group, the blocks that came from there; those of others were in memory.
        self.from_disk = [np.empty(0, np.intp)] * len(self._groups)
        self.epoch = identity.epoch
        several = len(self._groups) > 1
        self.keys = [GroupKeys(identity, group, several, self._adapter)
                     for group in self._groups]
        # Per group, the blocks that were saved, found present or given up. Never beyond what is
        # both computed and hashed: a block counted before it has a key would be lost for ever.
        self.saved = [0] * len(self._groups)
        # Per group, the last block that was allocated: the parent of the next.
        self.tails: list[tuple[int, kvshm.Handle] | None] = [None] * len(self._groups)

    def block_tokens(self, group: int) -> int:
        return self._groups[group].block_tokens

    def group_index(self, group: int) -> int:
        """Of a group's block ids in vLLM's tables."""
        return self._groups[group].index

    def tokens_from_disk(self, begin: int, end: int) -> int:
        """How many of the tokens begin ... end - 1 were on disk: as the first group has them."""
        group = self._groups[0]
        there = self.from_disk[0] * group.block_tokens
        return int(np.count_nonzero((there >= begin) & (there < end))) * group.block_tokens

    def extend_keys(self) -> None:
        hashes = self.request.block_hashes
        for own in self.keys:
            own.extend(hashes)

    def drop_hold(self) -> None:
        if self.hold is not None:
            self.hold.release()
            self.hold = None
        if self.fetch is not None:
            self.fetch.release()
            self.fetch = None
