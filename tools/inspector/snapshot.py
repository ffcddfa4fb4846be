# SPDX-License-Identifier: Apache-2.0
"""One reading of everything that the invariants are about, copied out of the arena.

Each word is read whole, but one after the other: on a live arena two words may be of different
moments. `recheck.py` deals with that.
"""
from __future__ import annotations

import numpy as np

from . import layout, queues
from .census import halted
from .view import Array, View, bits, holders_of, state_of


class Snapshot:
    """`live` has the bit of each slot whose process lives, `halted` of those that are stopped.

    quiet: nobody is working, so nobody counts as halted in the midst of it."""

    def __init__(self, view: View, quiet: bool = False) -> None:
        g = view.geometry
        self.blocks, self.buckets = g.blocks, g.buckets
        self.live = sum(1 << slot for slot, lives in enumerate(view.live_slots()) if lives)
        self.halted = 0 if quiet else halted(view, self.live)
        entries = view.index.copy()
        self.words = view.words()
        self.seq = np.ascontiguousarray(view.hot["seq"])
        self.lo = np.ascontiguousarray(view.hot["key"][:, 0])
        self.hi = np.ascontiguousarray(view.hot["key"][:, 1])
        self.flags = np.ascontiguousarray(view.hot["flags"])
        self.tenant = np.ascontiguousarray(view.hot["tenant"])
        self.priority = np.ascontiguousarray(view.hot["priority"])
        self.expires = np.ascontiguousarray(view.cold["expires"])
        self.calms = np.ascontiguousarray(view.cold["calms"])
        self.tenants_seen = bits(view.superblock["tenants_seen"], layout.TENANTS)
        self.lanes = queues.lanes(view)
        self.primary = np.ascontiguousarray(view.cold["primary"])
        self.free = bits(view.free_map, g.blocks)
        self.summary = bits(view.summary, g.region_words * 64)
        self.regions = np.stack([bits(row, g.region_words * 64) for row in view.regions])

        self.states = state_of(self.words)
        self.region = np.arange(g.blocks) // layout.REGION_BLOCKS
        self.holders = holders_of(self.words)
        self.keyless = (self.lo | self.hi) == 0
        self._split(entries)

    def _split(self, entries: Array) -> None:
        """Index entries by kind. `at` is the position, `id` the block, both as int64."""
        at = np.flatnonzero(entries)
        value = entries[at]
        ids = (value & np.uint64(0xFFFFFFFF)).astype(np.int64) - 1
        inside = (ids >= 0) & (ids < self.blocks)
        tentative = (value & np.uint64(layout.TENTATIVE)) != 0
        self.stray_entries = value[~inside]
        keep = inside & ~tentative
        self.at, self.entry, self.id = at[keep], value[keep], ids[keep]
        keep = inside & tentative
        self.tentative, self.tentative_id = value[keep], ids[keep]
        self.entries_of = np.bincount(self.id, minlength=self.blocks)

    def halted_near(self) -> Array:
        """Blocks in regions that a stopped process has been in."""
        slots = [slot for slot in range(layout.SLOTS) if self.halted >> slot & 1]
        return np.asarray(np.asarray(self.regions[slots].any(axis=0))[self.region])

    def lives(self, holders: Array) -> Array:
        """Has at least one living holder?"""
        return np.asarray((holders & np.uint64(self.live)) != 0)
