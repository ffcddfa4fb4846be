# SPDX-License-Identifier: Apache-2.0
"""The blocks of an engine's KV tensors: which are free, which hold what, and copies to the arena.

States of a block: free; in use, by one or more; inactive: it has a key, nobody uses it, and it
goes, least recently used first, when room is wanted. free + inactive + in use = all.
"""
from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from errno import EINVAL, EIO, ENOSPC
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from kvshm.device.layout import Layout
from kvshm.device.streams import streams_of
from kvshm.device.transfer import PRESENT, Offload, Onboard, Transfer
from kvshm.errors import Busy, Closed, Error, InvalidArgument, Misuse, NoSpace, TooLarge
from kvshm.paged import Pages, runs_of
from kvshm.records import NONE, Presence

Ids = npt.NDArray[np.uint32]


class PoolStatus(NamedTuple):
    """under_way: transfers. node, arena_node: NUMA, as measured; None = not known, -2 = the arena
    is interleaved. note: what is wrong, "" = nothing. registered: bytes of the arena that are
    registered with the device."""

    blocks: int
    free: int
    inactive: int
    in_use: int
    under_way: int
    lost: int
    device: str
    node: int | None
    arena_node: int | None
    registered: int
    loaded: int
    stored: int
    present: int
    failed: int
    note: str


def _keys(keys: Any) -> list[bytes]:
    rows = keys if isinstance(keys, (list, tuple)) else np.asarray(keys, np.uint8)
    out = [bytes(key) for key in rows]
    if any(len(key) != 16 for key in out):
        raise InvalidArgument("keys: expected 16 bytes each")
    return out


class Pool:
    """Wraps an engine's tensors (see kvshm.paged.runs_of), or owns those that Pool.of() makes.

    `reserved`: blocks that are never given out. part: which slice of the arena's blocks is ours.
    drain: seconds for which the blocks of a killed process stay out of reach, since a device may
    still write into them. Any thread; calls never wait for a device, but close() up to its limit.
    """

    def __init__(self, arena: Any, tensors: Mapping[str, Any], blocks: int, *,
                 rows_per_block: int = 1, part: int = 0, reserved: Iterable[int] = (),
                 drain: float = 2.0, backend: Any = "cuda") -> None:
        self.arena, self.part = arena, part
        self.tensors = dict(tensors)
        self.pages: Pages = runs_of(self.tensors, blocks, rows_per_block)
        if (part + 1) * self.pages.slice_bytes > arena.block_bytes:
            raise InvalidArgument(f"part {part} of {self.pages.slice_bytes} bytes does not fit "
                                  f"into the arena's blocks of {arena.block_bytes}")
        kept = {int(i) for i in reserved}
        self._lock = threading.RLock()
        self._free = [i for i in reversed(range(blocks)) if i not in kept]
        self._all = frozenset(self._free)
        self._uses: dict[int, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._inactive: OrderedDict[int, None] = OrderedDict()
        self._under_way: list[Transfer] = []
        self._lost: list[Any] = []  # fills and blocks that a lost device may still write
        self._counts = dict(loaded=0, stored=0, present=0, failed=0)
        self._open = True
        self._streams = streams_of(self.pages.device)
        self._registered = self._streams.register(arena, backend, drain)
        self.node = self._streams.node(self.pages)

    @classmethod
    def of(cls, arena: Any, layout: Layout, blocks: int, on: Any = "cpu", **more: Any) -> Self:
        """A pool that makes its tensors: `pool.tensors`."""
        return cls(arena, layout.allocate(blocks, on), blocks, **more)

    # ---- blocks ----------------------------------------------------------------------------------

    def allocate(self, n: int) -> Ids:
        """n blocks to compute into, all or none: NoSpace. What is inactive makes room."""
        with self._lock:
            self._poll()
            return self._take(n)

    def match(self, keys: Any) -> Ids:
        """The longest prefix that the pool has, held: release() it."""
        found = []
        with self._lock:
            self._poll()
            for key in _keys(keys):
                block = self._block_of.get(key)
                if block is None:
                    break
                self._use(block)
                found.append(block)
        return np.array(found, np.uint32)

    def register(self, ids: Sequence[int] | Ids, keys: Any) -> int:
        """Blocks in use hold these keys now, and are found by them. How many: where another
        block has the key already, this one stays without."""
        names = _keys(keys)
        with self._lock:
            blocks = self._used(ids, len(names))
            return sum(self._name(block, key) for block, key in zip(blocks, names, strict=True))

    def hold(self, ids: Sequence[int] | Ids) -> None:
        with self._lock:
            for block in self._used(ids):
                self._uses[block] += 1

    def release(self, ids: Sequence[int] | Ids) -> None:
        """Give a use of each back; NONE is passed over. With a key it stays while there is room."""
        with self._lock:
            for block in self._used([i for i in ids if i != NONE]):
                self._give_back(block)

    def forget(self, keys: Any = None) -> int:
        """These keys (all) are found no more; what is inactive is free at once. How many."""
        with self._lock:
            wanted = list(self._block_of) if keys is None else _keys(keys)
            blocks = [self._block_of[key] for key in wanted if key in self._block_of]
            for block in blocks:
                self._unname(block)
            return len(blocks)

    # ---- copies ----------------------------------------------------------------------------------

    def onboard(self, lease: Any, keys: Any, *, first: int = 0) -> Transfer:
        """Blocks first, first + 1 ... of the lease, whose keys these are, into blocks of the pool,
        in one call. What the pool has is held, not copied. The lease may be released at once.

        NoSpace: the pool has no room; nothing has changed. A block that failed has NONE as its
        id and a code; none of it is found."""
        names = _keys(keys)
        if not 0 <= first <= first + len(names) <= len(lease):
            raise InvalidArgument(f"{len(names)} keys for blocks {first} to {first + len(names)} "
                                  f"of a lease of {len(lease)}")
        if not self.pages.writable:
            raise Misuse("onboard: the memory of the layers cannot be written")
        with self._lock:
            self._poll()
            had = [self._block_of.get(name, NONE) for name in names]
            for block in had:  # before room is made: they must not be what makes it
                if block != NONE:
                    self._use(block)
            ids = np.array(had, np.uint32)
            places = np.flatnonzero(ids == NONE)
            try:
                ids[places] = self._take(len(places))
            except NoSpace:
                for block in had:
                    if block != NONE:
                        self._give_back(block)
                raise
            transfer = Onboard(self, ids, names)
            transfer.codes[ids != NONE] = PRESENT
            transfer.codes[places] = 2
            if len(places):
                transfer.hold = self._hold(lease, transfer, places, first)
                stream = self._streams.begin("load")
                for group in _neighbours(places):
                    self._load(transfer, lease, group, first, stream)
            return self._begun(transfer, "load")

    def _hold(self, lease: Any, transfer: Onboard, places: Any, first: int) -> Any:
        """Copies of a device outlive the call, and with it perhaps the lease."""
        if not self._streams.later:
            return None
        wanted = [lease.handles[first + int(i)] for i in places]
        return self.arena.pin([handle for handle in wanted if handle is not None])

    def _load(self, transfer: Onboard, lease: Any, group: Any, first: int, stream: Any) -> None:
        if self._streams.later and transfer.hold is None:
            return transfer._failed(group, -EIO, "onboard: a block is gone")
        try:
            codes = self.pages.load(lease, transfer.ids[group], part=self.part, stream=stream,
                                    first=first + int(group[0]))
        except Error as error:
            return transfer._failed(group, -(error.code or EIO), str(error))
        bad = codes < 0
        if bad.any():
            transfer._failed(group[bad], codes[bad], "a block was not loaded")

    def offload(self, ids: Sequence[int] | Ids, keys: Any, *, after: Any = None,
                **options: Any) -> Transfer:
        """Copy blocks in use into the arena under these keys, in one call, and publish what has
        arrived. What the arena has, or is being given by another, is not copied. after: what the
        first of them follows (see Arena.allocate, which also has the options).

        Where the arena has no room the code is -ENOSPC; the pool's blocks stay as they are."""
        names = _keys(keys)
        with self._lock:
            self._poll()
            blocks = self._used(ids, len(names))
            transfer = Offload(self, np.array(blocks, np.uint32))
            there = self.arena.presence(names) & (Presence.G2 | Presence.FILLING)
            transfer.codes[there != 0] = PRESENT
            for block in blocks:
                self._uses[block] += 1
            stream = None
            for group in _neighbours(np.flatnonzero(there == 0)):
                stream = stream or self._streams.begin("store")
                self._store(transfer, names, group, after, stream, options)
            return self._begun(transfer, "store")

    def _store(self, transfer: Offload, names: list[bytes], group: Any, after: Any, stream: Any,
               options: dict[str, Any]) -> None:
        start = int(group[0])
        wanted = names[start:start + len(group)]
        fill = head = None
        try:
            if start:  # its parent is the one before, wherever that is now
                for held, places in transfer.fills:
                    if places[-1] == start - 1:
                        after = held.handles[-1]
                head = self.arena.scan([names[start - 1]])
                after = head.handles[0] if head.hits else None
            fill = self.arena.allocate(len(wanted), keys=wanted, after=after, **options)
            codes = self.pages.store(fill, transfer.ids[group], part=self.part, stream=stream)
        except NoSpace as error:
            return transfer._failed(group, -ENOSPC, str(error))
        except Error as error:  # of the whole call: nothing was begun
            if fill is not None:
                fill.abort()
            return transfer._failed(group, -(error.code or EINVAL), str(error))
        finally:
            if head is not None:
                head.release()
        transfer.fills.append((fill, group))
        if (codes < 0).any():
            transfer.reason = transfer.reason or "a block was not stored"

    def _begun(self, transfer: Transfer, way: str) -> Transfer:
        self._under_way.append(transfer)
        transfer._event = self._streams.event(way)
        if transfer._event is None:
            transfer._end()
        return transfer

    # ---- as a whole ------------------------------------------------------------------------------

    def poll(self) -> int:
        """End the transfers whose copies are done; how many are under way."""
        with self._lock:
            return self._poll()

    def status(self) -> PoolStatus:
        info, device = self.arena.info(), self.arena.device()
        with self._lock:
            self._poll()
            free, idle = len(self._free), len(self._inactive)
            return PoolStatus(
                len(self._all), free, idle, len(self._all) - free - idle, len(self._under_way),
                len(self._lost), self.pages.device, self.node,
                None if info.numa == -1 else info.numa, device.bytes_registered,
                **self._counts, note=self._note(info.numa, device))

    def _note(self, arena_node: int, device: Any) -> str:
        notes = []
        if self.node is not None and arena_node not in (-1, self.node):
            where = "interleaved" if arena_node == -2 else f"on NUMA node {arena_node}"
            notes.append(f"the arena is {where}, {self.pages.device} on node {self.node}: copies "
                         "cross between nodes (Arena.open(numa=))")
        if self._registered is False or (self._registered and device.reason):
            notes.append("not all of the arena is registered with the device: copies are slower "
                         f"({device.reason or 'refused'})")
        if self._lost:
            notes.append("the device is lost; what it was copying stays out of reach")
        return "; ".join(notes)

    def close(self, timeout: float = 10.0) -> None:
        """Wait for the copies, end the transfers, undo the registration. Busy: copies did not end
        in time; all stays as it is."""
        deadline = time.monotonic() + timeout
        while self._open and self.poll():
            if time.monotonic() >= deadline:
                raise Busy(f"{len(self._under_way)} transfers are under way after {timeout} s")
            time.sleep(1e-4)
        with self._lock:
            if self._open:
                self._open = False
                if self._registered and not self.arena.closed:
                    self.arena.unregister_device(timeout=max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return (f"<kvshm.device.Pool: {len(self._all)} blocks on {self.pages.device}, "
                f"{len(self._free)} free, {len(self._inactive)} inactive>")

    # ---- with the lock held ----------------------------------------------------------------------

    def _poll(self) -> int:
        if not self._open:
            raise Closed("this pool is closed")
        for transfer in list(self._under_way):
            transfer.done()
        return len(self._under_way)

    def _take(self, n: int) -> Ids:
        if n > len(self._all):
            raise TooLarge(f"{n} blocks of a pool of {len(self._all)}")
        if n > len(self._free) + len(self._inactive):
            raise NoSpace(f"{n} blocks wanted, {len(self._free)} free and {len(self._inactive)} "
                          f"inactive of {len(self._all)}")
        while len(self._free) < n:
            self._unname(next(iter(self._inactive)))
        out = [self._free.pop() for _ in range(n)]
        for block in out:
            self._uses[block] = 1
        return np.array(out, np.uint32)

    def _use(self, block: int) -> None:
        self._inactive.pop(block, None)
        self._uses[block] = self._uses.get(block, 0) + 1

    def _give_back(self, block: int) -> None:
        self._uses[block] -= 1
        if self._uses[block]:
            return
        del self._uses[block]
        if block in self._key_of:
            self._inactive[block] = None
        else:
            self._free.append(block)

    def _used(self, ids: Any, n: int | None = None) -> list[int]:
        blocks = [int(i) for i in ids]
        if n is not None and len(blocks) != n:
            raise InvalidArgument(f"{n} keys for {len(blocks)} blocks")
        wrong = [block for block in blocks if block not in self._uses]
        if wrong:
            raise Misuse(f"block {wrong[0]} is not in use")
        return blocks

    def _name(self, block: int, key: bytes) -> bool:
        if self._block_of.setdefault(key, block) != block:
            return False
        if self._key_of.setdefault(block, key) != key:
            del self._block_of[key]
            raise Misuse(f"block {block} has another key already")
        return True

    def _unname(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]
        if block in self._inactive:
            del self._inactive[block]
            self._free.append(block)

    def _lose(self, block: int) -> None:
        self._lost.append(block)  # its use is never given back

    def _ended(self, transfer: Transfer) -> None:
        self._under_way.remove(transfer)
        way = "loaded" if isinstance(transfer, Onboard) else "stored"
        self._counts[way] += transfer.copied
        self._counts["present"] += transfer.present
        self._counts["failed"] += len(transfer.failed)

    def _order(self, transfer: Transfer, stream: Any) -> None:
        self._streams.order("load" if isinstance(transfer, Onboard) else "store", stream)


def _neighbours(places: Any) -> list[Any]:
    return [g for g in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1) if len(g)]
