# SPDX-License-Identifier: Apache-2.0
"""The keys of a request's blocks: vLLM's block hashes, bound to the identity, kept and extended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import kvshm

from .groups import Group

KeyArray = npt.NDArray[np.uint8]


class GroupKeys:
    """Keys of the full blocks of one request in one group, in order."""

    def __init__(self, identity: kvshm.Identity, group: Group, several: bool,
                 adapter: bytes) -> None:
        """several: the model has more than one group, so the group is part of the key."""
        self._identity, self._hashes = identity, group.hashes
        self._extra: dict[str, bytes] = {}
        if several:
            self._extra["group"] = group.index.to_bytes(4, "little")
        if adapter:
            self._extra["adapter"] = adapter
        self._room: KeyArray = np.empty((0, 16), np.uint8)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def extend(self, hashes: Sequence[Any]) -> None:
        """`hashes` is the request's whole list; those that are known already are not looked at."""
        per, old = self._hashes, self._n
        n = len(hashes) // per
        if n <= old:
            return
        # vLLM chains its hashes: the last one of a block stands for all before it.
        new = hashes[(old + 1) * per - 1:n * per:per]
        # In one piece: what a Python object for each hash costs is most of it otherwise.
        whole = np.frombuffer(b"".join(new), np.uint8).reshape(len(new), len(new[0]))
        keys = self._identity.keys_from_hashes(whole, extra=self._extra or b"")
        if n > len(self._room):
            room = np.empty((max(n, 2 * len(self._room)), 16), np.uint8)
            room[:old] = self._room[:old]
            self._room = room
        self._room[old:n] = keys
        self._n = n

    def __getitem__(self, blocks: slice) -> KeyArray:
        return self._room[:self._n][blocks]
