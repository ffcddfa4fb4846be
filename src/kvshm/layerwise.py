# SPDX-License-Identifier: Apache-2.0
"""KV by layer groups, for engines that compute one group of layers while the next is loading.

A block's KV lies in `groups` arena blocks, one a group of layers, under keys of their own. Each is
stored, checked and evicted by itself, and a block of the engine is there if all its parts are.

    layers = LayerKeys(identity, groups=8)
    with LayerwiseLoad(arena, layers.every(keys)) as load:
        for group in range(8):
            if load.wait(group, timeout=2) < counted_on:
                ...                         # compute from block load.blocks on, all groups of it
            ...                             # the group's layers, from load.view(group, i)
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from kvshm.errors import Closed, InvalidArgument
from kvshm.records import LoadState, Presence

if TYPE_CHECKING:
    from kvshm.core import Arena
    from kvshm.index.identity import Identity
    from kvshm.lease import Lease
    from kvshm.views import View

Keys = npt.NDArray[np.uint8]
_THERE = int(Presence.G2 | Presence.G3)


class LayerKeys:
    """Keys of a block's parts: its own key, bound with the number of the group (docs/keys.md). With
    one group there is one part, under the block's own key."""

    def __init__(self, identity: Identity, groups: int) -> None:
        """The identity is the one that the blocks' keys are of. Its layout says how many groups
        there are: their keys alone tell one from another, not two ways of splitting."""
        if groups < 1:
            raise InvalidArgument(f"{groups} layer groups")
        self.identity, self.groups = identity, groups

    def of(self, keys: Any, group: int) -> Keys:
        """Of one group: (n, 16) uint8, as `keys` or a sequence of n byte strings."""
        if not 0 <= group < self.groups:
            raise InvalidArgument(f"layer group {group} of {self.groups}")
        rows = _rows(keys)
        if self.groups == 1:
            return rows
        number = group.to_bytes(4, "little")
        return self.identity.keys_from_hashes(rows, extra=[("group", number)])

    def every(self, keys: Any) -> list[Keys]:
        """Of all groups, in their order."""
        rows = _rows(keys)
        return [self.of(rows, group) for group in range(self.groups)]


class LayerwiseLoad:
    """The longest prefix of blocks of which memory and disk have every part, on its way into memory
    group by group, the first one first. What has come is held until release().

    A part that fails, or does not come in time, shortens the prefix. One thread at a time.
    """

    def __init__(self, arena: Arena, keys: Sequence[Any], *, touch: bool = True,
                 tag: str | int = "") -> None:
        """keys: of the same blocks, once a group, as LayerKeys.every() has them."""
        if not keys or len({len(of_group) for of_group in keys}) != 1:
            raise InvalidArgument("a layer-wise load takes as many keys of each group")
        self.leases: list[Lease] = []
        self.released = False
        self.loads = 0  # parts that were not in memory
        rows = [_rows(of_group) for of_group in keys]
        # A look first: nothing is loaded that would lack a part.
        self.blocks = min(_prefix(arena.presence(of_group) & _THERE != 0) for of_group in rows)
        try:
            for of_group in rows:
                lease = arena.match(of_group[:self.blocks], touch=touch, tag=tag, load=True)
                self.leases.append(lease)
                self.blocks = min(self.blocks, lease.promised)
                if lease.states is not None:
                    self.loads += int((lease.states != LoadState.MEMORY).sum())
        except BaseException:
            self.release()
            raise

    @property
    def groups(self) -> int:
        return len(self.leases)

    @property
    def under_way(self) -> int:
        """Parts that are still on their way."""
        return 0 if self.released else sum(lease.loading for lease in self.leases)

    @property
    def failed(self) -> int:
        """Parts whose loads have failed so far."""
        return sum(len(lease.failed) for lease in self.leases)

    def wait(self, group: int, timeout: float) -> int:
        """Until the group's parts are here, or the time is over: the blocks that can be used, which
        `blocks` is from now on. Fewer than before: whoever counts on more computes them."""
        if self.released:
            raise Closed("this load was released")
        lease = self.leases[group]
        lease.wait(timeout)
        self.blocks = min(self.blocks, len(lease))
        return self.blocks

    def view(self, group: int, index: int) -> View:
        """The bytes of a part that wait() has found, read-only, with a hold of their own."""
        return self._of(group, index).view(index)

    def copy_out(self, group: int, index: int, destination: Any, offset: int = 0) -> None:
        """As Lease.copy_out."""
        self._of(group, index).copy_out(index, destination, offset)

    def _of(self, group: int, index: int) -> Lease:
        if not 0 <= index < self.blocks:
            raise IndexError(f"block {index} of {self.blocks}")
        return self.leases[group]

    def release(self) -> None:
        """Give all back; views keep theirs. A second call does nothing."""
        self.released = True
        for lease in self.leases:
            lease.release()

    def __len__(self) -> int:
        return self.blocks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _rows(keys: Any) -> Keys:
    if isinstance(keys, np.ndarray):
        return keys
    return np.frombuffer(b"".join(bytes(key) for key in keys), np.uint8).reshape(-1, 16)


def _prefix(there: npt.NDArray[np.bool_]) -> int:
    gaps = np.flatnonzero(~there)
    return int(gaps[0]) if len(gaps) else len(there)
