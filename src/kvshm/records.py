# SPDX-License-Identifier: Apache-2.0
"""The plain values that calls take and return: handles, states, reports."""
from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from enum import IntEnum, IntFlag
from typing import NamedTuple

NONE = 0xFFFFFFFF
"""The id that stands for "no block"."""


class Handle(NamedTuple):
    """A block and which of its lives. Holds nothing: the weak form, fit to be sent to others."""

    id: int
    seq: int


class Status(IntEnum):
    """What became of a key: at `allocate` (NONE to FULL), at `register` (PRIMARY to PRIVATE)."""

    NONE = 0
    ANNOUNCED = 1
    EXISTS = 2
    PENDING = 3
    FULL = 4
    PRIMARY = 5
    DUPLICATE = 6
    PRESENT = 7
    PRIVATE = 8


class Presence(IntFlag):
    """Bits of `Arena.presence`: in memory, on disk, remote, being filled."""

    G2 = 1
    G3 = 2
    G4 = 4
    FILLING = 8


class LoadState(IntEnum):
    """What became of a key of `match(load=True)`. NONE: it is not part of the prefix. AWAITED:
    another process or thread is loading it. FAILED: a miss (checksum, I/O, no room, time)."""

    NONE = 0
    MEMORY = 1
    LOADING = 2
    AWAITED = 3
    LOADED = 4
    FAILED = 5


class TierState(IntEnum):
    """Of the NVMe tier, in this process. REBUILDING: descriptors are read back, look-ups find
    memory only. NO_SPACE: nothing is written, loads go on. STALLED: transfers do not come back in
    time; it is left alone until they do. FAILED: the file cannot be used any more. SLOW: not loaded
    from, since computing is faster (the option min_speed); stores go on."""

    NONE = 0
    REBUILDING = 1
    OK = 2
    NO_SPACE = 3
    STALLED = 4
    FAILED = 5
    SLOW = 6


class TierStatus(IntEnum):
    """Where the disk stands with a key. NONE: not there; it may wait in a queue."""

    NONE = 0
    WRITING = 1
    STORED = 2


class State(IntEnum):
    """State of a block word."""

    FREE = 0
    FILLING = 1
    READY = 2
    EVICTING = 3
    READY_LAST = 6


class ReapReport(NamedTuple):
    """What `Arena.reap` gave back for processes that are dead."""

    slots_dead: int
    slots_cleared: int
    slots_draining: int
    holds: int
    fills: int
    evictions: int


class Broken(NamedTuple):
    """A broken invariant: its number in docs/protocol.md, the block (or NONE), what was seen."""

    invariant: int
    id: int
    what: str


class BlockInfo(NamedTuple):
    """A snapshot of one block; its fields are not mutually consistent.

    ttl, priority_seconds: what is left of them, 0.0 = over, None = for good.
    """

    id: int
    key: bytes
    seq: int
    holders: int
    state: int
    flags: int
    parent: int
    child: int
    primary: int
    depth: int
    stamp: int
    frequency: int
    parts: int
    begun: int
    arrived: int
    priority: int
    tenant: int
    own_holds: int
    ttl: float | None
    priority_seconds: float | None


class TenantInfo(NamedTuple):
    """A tenant of an arena. used: blocks that are its own and not free. quota: how many it may
    have, None = any number. weight: of its share against others, None = none was set (counts as 1
    where others have one). share: by weight among the tenants that have blocks, in blocks; None
    where nobody has a weight. name: its first 31 bytes, "" = it has none.
    """

    tenant: int
    name: str
    used: int
    quota: int | None
    weight: int | None
    share: int | None


class ProcessInfo(NamedTuple):
    """A process slot in use. `start_time` in clock ticks after boot, `attached_at` in seconds.

    epoch: of the identity that it attached with; None if it came without one.
    """

    slot: int
    pid: int
    uid: int
    label: str
    alive: bool
    device_busy: bool
    draining: bool
    self: bool
    start_time: int
    attached_at: int
    pid_ns: int
    device_bytes: int
    device_state: int
    device_memory: bool
    epoch: int | None


class DeviceState(IntEnum):
    """Of a process's registration with a device. PARTLY: some blocks; REFUSED: none."""

    NONE = 0
    REGISTERING = 1
    REGISTERED = 2
    PARTLY = 3
    REFUSED = 4
    UNREGISTERING = 5


class DeviceInfo(NamedTuple):
    """The registration of this process; `state` is a DeviceState, `reason` says why not all.

    `bytes_registered` of the blocks' `bytes` are usable so far; `bytes_foreign` of these were
    registered by somebody else. `stuck`: pieces that the device would not give back.
    """

    state: int
    backend: str
    references: int
    bytes: int
    bytes_registered: int
    bytes_foreign: int
    pieces: int
    piece_blocks: int
    stuck: int
    code: int
    reason: str


class DeviceRange(NamedTuple):
    """Neighbouring blocks that are registered with the device."""

    first: int
    blocks: int
    foreign: bool


class TierInfo(NamedTuple):
    """The NVMe tier as this process sees it. `state` is a TierState.

    engine: "io_uring" or "threads". direct: past the page cache. why: of the engine, of buffered
    transfers, or what is wrong; "" = all as wished. files, path: how many, with ":" between them.
    image: the arena of its slots, for `kvshm stat` and `kvshm verify`. ready: slots that hold a
    block. rebuild_done of rebuild_total slots have been looked at. queued: blocks of all processes
    that wait to be written, or are being; fetching: keys asked for ahead that wait. in_flight:
    transfers of this process. align: of offsets in the file. registered: the arena is, as buffers
    of the ring. read_speed: bytes a second of its loads of late; 0 = not known yet. mover: "this"
    if this process moves for all, "other" if another one does, "" if nobody does; mover_pid: its
    process, 0 = nobody's.
    """

    state: int
    engine: str
    direct: bool
    why: str
    files: int
    path: str
    image: str
    slots: int
    slot_bytes: int
    ready: int
    rebuild_done: int
    rebuild_total: int
    queued: int
    in_flight: int
    align: int
    registered: bool
    read_speed: int
    mover: str
    mover_pid: int
    fetching: int


class ArenaInfo(NamedTuple):
    """What an arena is. Sizes in bytes; `numa` is a node, or -2 for interleaved.

    charged_group: the control group that pays for the pages, its creator's; "" if unknown.
    foreign_...: the last process that was refused because it came with another identity (as JSON),
    when (seconds since the epoch, 0 = never) and its pid; stats().foreign_attaches_total counts.
    """

    name: str
    path: str
    bytes: int
    block_bytes: int
    blocks: int
    data_offset: int
    metadata_bytes: int
    private_bytes: int
    page_bytes: int
    uuid: builtins.bytes
    fingerprint: builtins.bytes
    identity: str
    slot: int
    slots_used: int
    pinned: bool
    created: bool
    raw: bool
    numa: int
    charged_group: str
    foreign_at: int
    foreign_pid: int
    foreign_identity: str


class Stats(Mapping[str, int]):
    """Statistics by name (`stats["hits_total"]`, `stats.hits_total`), in the header's order.

    Gauges end in no suffix, counters in _total. A snapshot: not mutually consistent.
    """

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, int]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> int:
        if name.startswith("_") or name not in self._values:  # "_values" itself: while unpickled
            raise AttributeError(name)
        return self._values[name]

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v}" for k, v in self._values.items() if v)
        return f"Stats({shown})"
