# SPDX-License-Identifier: Apache-2.0
"""What waits to be moved between an arena's tiers, and which of its processes moves it."""
from __future__ import annotations

from typing import Any, NamedTuple

from . import layout, locks
from .view import View

# In the order of the lanes, and of KVSHM_TIER_WRITE_... of the header.
LANES = ("asked", "usual", "gathered", "ahead")
RULES = ("through", "off", "lazy", "watermark", "release", "idle")


class Lane(NamedTuple):
    """Entries ended, taken and made, read in this order: on a live arena each may have grown when
    the next is read. `after`: those ended once more, behind the others."""

    done: int
    head: int
    tail: int
    after: int

    @property
    def waiting(self) -> int:
        return min(layout.LANE_ROOM, max(0, self.tail - self.head))

    @property
    def taken(self) -> int:
        """Of these some may be taken again, by the next mover: it looks what became of them."""
        return min(layout.LANE_ROOM, max(0, self.head - self.done))

    @property
    def sound(self) -> bool:
        return self.done <= self.head <= self.tail <= self.after + layout.LANE_ROOM


def lanes(view: View) -> list[Lane]:
    return [Lane(int(one["done"]), int(one["head"]), int(one["tail"]), int(one["done"]))
            for one in view.lanes]


def mover(view: View) -> dict[str, Any] | None:
    """Who moves for all, or did until it died; None: nobody does."""
    slot = int(view.mover["slot"]) - 1
    if not 0 <= slot < layout.SLOTS or not view.slots[slot]["used"]:
        return None
    alive = locks.held(view.fd, locks.life(slot))
    if alive and not locks.held(view.fd, locks.MOVER):
        return None  # it only has the slot of one that did
    record = view.slots[slot]
    return dict(slot=slot, pid=int(record["pid"]),
                label=bytes(record["label"]).decode("utf-8", "replace"), alive=alive)


def describe(view: View) -> dict[str, Any]:
    """As it stands in the JSON documents. write: how the mover is offered blocks; None: there has
    been none."""
    rule = int(view.mover["rule"])
    return dict(
        mover=mover(view), write=RULES[rule - 1] if 0 < rule <= len(RULES) else None,
        lanes={name: dict(waiting=lane.waiting, taken=lane.taken)
               for name, lane in zip(LANES, lanes(view), strict=True)})
