# SPDX-License-Identifier: Apache-2.0
"""Who is attached, what each holds, and how many blocks are in which state."""
from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import counters, layout, locks
from .view import Array, View, holders_of, is_ready, state_of


# In the order of KVSHM_DEVICE_NONE, ... of the header.
DEVICE_STATES = ("none", "registering", "registered", "partly", "refused", "unregistering")


@dataclass
class Process:
    """A slot in use. `condition` is the kernel's word for a living one that it lets us see, `epoch`
    that of the identity it came with, None for none."""

    slot: int
    pid: int
    uid: int
    label: str
    alive: bool
    condition: str
    device_busy: bool
    draining: bool
    device_memory: bool
    device_state: str
    device_bytes: int
    attached_at: int
    start_time: int
    pid_ns: int
    epoch: int | None
    held_blocks: int = 0
    filling_blocks: int = 0
    evicting_blocks: int = 0
    quota_blocks: int = 0
    leases: int = 0
    locked_bytes: int | None = None
    counters: dict[str, int] = field(default_factory=dict)


@dataclass
class LeaseLine:
    """A hint that its owner leaves about one lease. A tag may be text of up to 8 bytes."""

    slot: int
    pid: int
    tag: str
    tag_number: int
    count: int
    age_seconds: int


def tally(view: View, words: Array) -> dict[str, int]:
    """The gauges, by the names of the header."""
    states, idle = state_of(words), holders_of(words) == 0
    ready = is_ready(states)
    found = {
        "blocks_total": view.geometry.blocks,
        "blocks_free": int(np.count_nonzero(states == layout.FREE)),
        "blocks_filling": int(np.count_nonzero(states == layout.FILLING)),
        "blocks_held": int(np.count_nonzero(ready & ~idle)),
        "blocks_inactive": int(np.count_nonzero(ready & idle)),
        "blocks_evicting": int(np.count_nonzero(states == layout.EVICTING)),
        "slots_used": int(np.count_nonzero(view.slots["used"])),
    }
    return {name: found[name] for name in counters.gauges()}


def totals(view: View) -> dict[str, int]:
    """Counters summed over all slots, those of former processes included."""
    names = counters.totals()
    sums = view.slots["stats"][:, :len(names)].sum(axis=0, dtype=np.uint64)
    found = {name: int(value) for name, value in zip(names, sums, strict=True)}
    # Those had no slot.
    found["foreign_attaches_total"] += int(view.superblock["foreign"]["count"])
    return found


def processes(view: View, words: Array) -> list[Process]:
    held = _count_bits(words[is_ready(state_of(words))])
    filling = _count_bits(words[state_of(words) == layout.FILLING])
    evicting = _count_bits(words[state_of(words) == layout.EVICTING])
    names, here, now = list(counters.totals()), _own_pid_ns(), _boottime_ms()
    found = []
    for slot, record in enumerate(view.slots):
        if not record["used"]:
            continue
        alive = locks.held(view.fd, locks.life(slot))
        epoch = int(view.superblock["epochs"][slot])
        pid, start, ns = int(record["pid"]), int(record["start_time"]), int(record["pid_ns"])
        condition, locked = _look_at(pid, start) if alive and ns == here else ("", None)
        found.append(Process(
            slot, pid, int(record["uid"]), bytes(record["label"]).decode("utf-8", "replace"),
            alive, condition if alive else "gone",
            locks.held(view.fd, locks.device(slot)),
            not alive and int(record["drain_until"]) > now, *_device(record),
            int(record["attached_at"]), start, ns, epoch & 0xFFFFFFFF if epoch >> 32 else None,
            int(held[slot]), int(filling[slot]), int(evicting[slot]),
            int(record["quota"]),
            int(np.count_nonzero(record["leases"]["count"])), locked,
            {name: int(value) for name, value in zip(names, record["stats"], strict=False)}))
    return found


def _device(record: Any) -> tuple[bool, str, int]:
    """May a device write for it; how far its registration is; bytes of blocks in it."""
    word = int(record["device_memory"])
    state = word >> 1 & 7
    name = DEVICE_STATES[state] if state < len(DEVICE_STATES) else str(state)
    return bool(word & 1), name, int(record["device_bytes"])


def halted(view: View, live: int) -> int:
    """Of the slots with a bit in `live`, those whose process is stopped, as bits."""
    here, found = _own_pid_ns(), 0
    for slot, record in enumerate(view.slots):
        if live >> slot & 1 and record["pid_ns"] == here:
            condition, _ = _look_at(int(record["pid"]), int(record["start_time"]))
            found |= (condition in ("stopped", "traced")) << slot
    return found


def leases(view: View) -> Iterator[LeaseLine]:
    """Those that hold something, of living and dead processes; the oldest of each slot first."""
    now = int(time.clock_gettime(time.CLOCK_MONOTONIC))
    for slot, record in enumerate(view.slots):
        if not record["used"]:
            continue
        lines = record["leases"][record["leases"]["count"] != 0]
        for line in lines[np.argsort(lines["start"], kind="stable")]:
            number = int(line["tag"])
            yield LeaseLine(slot, int(record["pid"]), tag_text(number), number,
                            int(line["count"]), max(0, now - int(line["start"])))


def tag_text(number: int) -> str:
    """A tag given as text is its first 8 bytes, little-endian; any other is shown as a number."""
    raw = number.to_bytes(8, "little").rstrip(b"\0")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return str(number)
    return text if text.isprintable() else str(number)


def _count_bits(words: Array) -> Array:
    """How many of these words have the bit of each slot."""
    total = np.zeros(layout.SLOTS, np.int64)
    for at in range(0, len(words), 1 << 16):
        raw = np.ascontiguousarray(words[at:at + (1 << 16)]).view(np.uint8).reshape(-1, 8)[:, :6]
        total += np.unpackbits(raw, axis=1, bitorder="little").sum(axis=0, dtype=np.int64)
    return total


def _own_pid_ns() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _boottime_ms() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


_CONDITIONS = {"R": "running", "S": "sleeping", "D": "waiting", "T": "stopped", "t": "traced",
               "Z": "zombie", "I": "idle", "X": "dead"}


def _look_at(pid: int, start_time: int) -> tuple[str, int | None]:
    """The kernel's word for a process, and the bytes it has locked; "" if it is not that one."""
    try:
        # The command name, in brackets, may hold anything; fields are counted behind it.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        if int(fields[19]) != start_time:
            return "", None
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (OSError, ValueError, IndexError):
        return "", None
    locked = next((int(line.split()[1]) * 1024 for line in status.splitlines()
                   if line.startswith("VmLck:")), None)
    return _CONDITIONS.get(fields[0], fields[0]), locked
