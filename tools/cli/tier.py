# SPDX-License-Identifier: Apache-2.0
"""What the commands say of an arena's tier."""
from __future__ import annotations

import os
from typing import Any

from ..inspector import objects, tiers
from ..inspector.view import View
from . import text
from .arenas import look_up
from .failures import Failure

_WIDTH = 30


def open_image(name: str, folder: str | None) -> View | None:
    """That of an arena, to read; None if it has none that can be."""
    image = tiers.image_of(name)
    try:
        fd, verdict = look_up(image, folder)
    except Failure:
        return None
    if fd is None or verdict.kind != objects.GOOD:
        if fd is not None:
            os.close(fd)
        return None
    view = View(fd, image, folder, verdict)
    if tiers.files(view):
        return view
    view.close()  # an arena that only has such a name
    return None


def describe(view: View) -> dict[str, Any] | None:
    """Of the arena that is looked at."""
    image = open_image(view.name, view.folder)
    if image is None:
        return None
    with image:
        return tiers.describe(image, view.geometry.block_bytes)


def bar(part: int, whole: int, width: int = _WIDTH) -> str:
    full = width * min(part, whole) // max(1, whole)
    return "█" * full + "░" * (width - full)


def render(t: dict[str, Any] | None, stats: dict[str, int], color: bool) -> str:
    if t is None:
        return "# tier\nnone"
    shown = dict(
        state=t["state"], files=text.clean(t["files"]), image=t["image"],
        slots=f"{t['slots_used']} of {t['slots']} used ({text.size(t['used_bytes'])})",
        queued=t["queued"], in_flight=t["in_flight"])
    if t["state"] == "rebuilding":
        done, total = t["rebuild_done"], t["rebuild_total"]
        shown["rebuild"] = (f"{bar(done, total)} {tiers.percent(done, total)}, {done} of {total} "
                            f"slots, {t['rebuild_kept']} kept")
    looked = stats["tier_loaded_total"] + stats["tier_load_failed_total"]
    shown["loaded"] = (f"{stats['tier_loaded_total']} of {looked} blocks, "
                       f"{text.size(stats['tier_read_bytes_total'])}")
    shown["stored"] = (f"{stats['tier_stored_total']} of {stats['tier_offered_total']} blocks, "
                       f"{text.size(stats['tier_write_bytes_total'])}")
    rows = [[str(one["slot"]), str(one["pid"]), one["state"], one["engine"],
             "direct" if one["direct"] else "buffered", "yes" if one["registered"] else "no",
             str(one["queued"]), str(one["in_flight"]), str(one["parked"]),
             tiers.why(one["cause"]) or "-"] for one in t["processes"]]
    head = ["SLOT", "PID", "STATE", "ENGINE", "FILE", "BUFFERS", "QUEUED", "IN FLIGHT", "PARKED",
            "WHY"]
    made = text.table(head, rows, color=color, alarm=["stalled", "failed", "no space"],
                      right=["SLOT", "PID", "QUEUED", "IN FLIGHT", "PARKED"]) if rows else ""
    return text.pairs("tier", shown) + ("\n" + made if made else "")
