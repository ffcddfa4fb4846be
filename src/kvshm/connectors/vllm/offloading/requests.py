# SPDX-License-Identifier: Apache-2.0
"""What the manager keeps of a request: its keys in order, and the blocks it holds."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Any

import numpy as np
from vllm.v1.kv_offload.base import OffloadKey, ReqContext, get_offload_group_idx

import kvshm
from kvshm.convert import HANDLE_DTYPE


class Chain:
    """The keys of one group of a request, in the order of its tokens: vLLM's and the arena's."""

    def __init__(self) -> None:
        self.names: list[OffloadKey] = []
        self.keys = np.empty((0, 16), np.uint8)
        # The last block that was allocated and its place: the parent of the next.
        self.tail: tuple[int, kvshm.Handle] | None = None


class Asked:
    """Threads: the scheduler's only."""

    def __init__(self, context: ReqContext, identity: kvshm.Identity) -> None:
        self.context = context
        self.finished = False
        self.held: dict[OffloadKey, tuple[kvshm.Lease, int]] = {}
        self.loading: list[kvshm.Lease] = []  # until all workers have copied
        self.bind(identity)

    def bind(self, identity: kvshm.Identity) -> None:
        """Begin anew under an identity (a new epoch): other keys, nothing held."""
        self.drop()
        self.identity = identity
        self.chains: dict[int, Chain] = {}
        self.places: dict[OffloadKey, int] = {}

    def place(self, name: OffloadKey) -> tuple[int, Chain, int] | None:
        """Its group, that group's chain, and where in it. None: not a key of this request."""
        if name not in self.places:
            self._extend()
        at = self.places.get(name)
        if at is None:
            return None
        group = get_offload_group_idx(name)
        return group, self.chains[group], at

    def _extend(self) -> None:
        """vLLM notes each key of a request here before it asks for it. The group is in the key,
        so it is in ours."""
        positions = self.context._offload_key_positions
        for name in islice(positions, len(self.places), None):
            names = self.chains.setdefault(get_offload_group_idx(name), Chain()).names
            self.places[name] = len(names)
            names.append(name)
        for chain in self.chains.values():
            new = chain.names[len(chain.keys):]
            if new:
                chain.keys = np.concatenate([chain.keys, self.identity.keys_from_hashes(new)])

    def hold(self, names: list[OffloadKey], lease: kvshm.Lease) -> None:
        self.held.update((name, (lease, at)) for at, name in enumerate(names))

    def take(self, names: Collection[OffloadKey]) -> Any:
        """Handles of blocks that are held, to be loaded: kept until `loaded`; all other holds are
        given back. KeyError: one is not held."""
        last: dict[kvshm.Lease, int] = {}
        found = [self.held[name] for name in names]
        for lease, at in found:
            last[lease] = max(at, last.get(lease, -1))
        arrays = {lease: lease.handle_array for lease in last}
        handles = np.array([arrays[lease][at] for lease, at in found], HANDLE_DTYPE)
        for lease, at in last.items():
            lease.trim(at + 1)
            self.loading.append(lease)
        self.drop(keep=last)
        return handles

    def drop(self, keep: Collection[kvshm.Lease] = ()) -> None:
        for lease in {lease for lease, _ in self.held.values()}:
            if lease not in keep:
                lease.release()
        self.held = {}

    def loaded(self) -> None:
        for lease in self.loading:
            lease.release()
        self.loading = []
