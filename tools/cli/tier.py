# SPDX-License-Identifier: Apache-2.0
"""What the commands say of an arena's tier."""
from __future__ import annotations

import os
from typing import Any

from ..inspector import objects, queues, tiers
from ..inspector.view import View
from . import text
from .arenas import look_up, open_view
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


def describe_queues(view: View) -> dict[str, Any]:
    """Of the arena that is looked at; of a tier's image, those of the arena whose tier it is."""
    if view.name.endswith(tiers.SUFFIX) and tiers.files(view):
        try:
            arena = open_view(view.name.removesuffix(tiers.SUFFIX), view.folder)
        except Failure:  # the image outlives it
            return queues.describe(view)
        with arena:
            return queues.describe(arena)
    return queues.describe(view)


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


def render_queues(q: dict[str, Any]) -> str:
    lanes = {name: one for name, one in q["lanes"].items() if any(one.values())}
    if q["mover"] is None and q["write"] is None and not lanes:
        return "# queues\nnone"
    shown = dict(mover=_mover(q["mover"]), write=q["write"] or "-")
    for name, one in q["lanes"].items():
        shown[name] = f"{one['waiting']} waiting, {one['taken']} being moved"
    return text.pairs("queues", shown)


def _mover(one: dict[str, Any] | None) -> str:
    if one is None:
        return "nobody"
    return (f"pid {one['pid']} ({text.clean(one['label'])}, slot {one['slot']})"
            + ("" if one["alive"] else ", DEAD"))
