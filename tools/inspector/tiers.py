# SPDX-License-Identifier: Apache-2.0
"""An arena's tier: its image, the arena NAME-g3 whose blocks are the slots of files on disk."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import dtypes, layout
from .view import View, state_of

SUFFIX = "-g3"
# In the order of KVSHM_TIER_NONE, ... and of KVSHM_TIER_AUTO, ... of the header.
STATES = ("none", "rebuilding", "ok", "no space", "stalled", "failed", "slow")
ENGINES = ("none", "io_uring", "threads")


def image_of(name: str) -> str:
    return name + SUFFIX


@dataclass
class Mover:
    """What one process's tier says of itself. cause: -errno of why it is not as wished, or 0."""

    slot: int
    pid: int
    state: str
    engine: str
    direct: bool
    registered: bool
    cause: int
    queued: int
    in_flight: int
    parked: int


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else str(number)


def movers(image: View) -> list[Mover]:
    """Of the living processes, by slot."""
    found = []
    for slot, lives in enumerate(image.live_slots()):
        record = image.slots[slot]
        if not lives or not record["used"]:
            continue
        line = record["tier"].copy()
        word = int(line["word"])
        cause = word >> 32
        found.append(Mover(
            slot, int(record["pid"]), _name(STATES, word & 255), _name(ENGINES, word >> 8 & 255),
            bool(word >> 16 & 255), bool(word >> 24 & 255),
            cause - (1 << 32) if cause >> 31 else cause, int(line["queued"]),
            int(line["in_flight"]), int(line["parked"])))
    return found


def why(cause: int) -> str:
    return os.strerror(-cause) if cause < 0 else ""


def describe(image: View, block_bytes: int) -> dict[str, Any]:
    """As it stands in the JSON documents; block_bytes: of the arena."""
    note = image.superblock["tier"].copy()
    states = np.array(state_of(image.words()))
    used = int(np.count_nonzero(states != layout.FREE))
    found = movers(image)
    return dict(
        image=image.name, files=files(image), state=_state(int(note["state"]), found),
        slots=image.geometry.blocks, slots_used=used,
        slots_filling=int(np.count_nonzero(states == layout.FILLING)),
        used_bytes=used * block_bytes, rebuild_done=int(note["done"]),
        rebuild_total=int(note["total"]), rebuild_kept=int(note["kept"]),
        queued=sum(one.queued for one in found), in_flight=sum(one.in_flight for one in found),
        processes=[vars(one) for one in found])


def glance(fd: int) -> str:
    """Its state alone, of an image that is not mapped."""
    head = os.pread(fd, layout.SUPERBLOCK, 0)
    if len(head) < layout.SUPERBLOCK:  # cut short meanwhile
        return ""
    note = np.frombuffer(head, dtypes.SUPERBLOCK)[0]["tier"]
    state = _name(STATES, int(note["state"]))
    return state if state != "rebuilding" else (
        f"rebuilding {percent(int(note['done']), int(note['total']))}")


def percent(part: int, whole: int) -> str:
    return f"{100 * part // max(1, whole)}%"


def files(image: View) -> str:
    """Their paths, ":" between them."""
    return bytes(image.superblock["tier"]["path"]).decode("utf-8", "replace")


def _state(note: int, found: list[Mover]) -> str:
    """The worst of what its processes say; where nobody lives, what the image says."""
    order = ("none", "ok", "slow", "no space", "rebuilding", "stalled", "failed")
    if _name(STATES, note) == "ok" and found:
        return max((one.state for one in found),
                   key=lambda state: order.index(state) if state in order else 0)
    return _name(STATES, note)
