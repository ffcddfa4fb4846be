# SPDX-License-Identifier: Apache-2.0
"""`kvshm list`: every kvshm.* object on the shm mount, whatever it is."""
from __future__ import annotations

import argparse
import os
from typing import Any

from ..inspector import objects
from ..inspector.glance import Cut, glance
from ..inspector.layout import Geometry
from . import arenas, text
from .failures import FINE, Failure
from .rights import warn_if_wide

HEAD = ["NAME", "SIZE", "USED", "BLOCKS", "PROCS", "STATE", "LAYOUT"]


def run(args: argparse.Namespace) -> int:
    found = []
    for folder in [None, *dict.fromkeys(args.dir)]:
        for name in (there := arenas.names(folder)):
            if arenas.is_image(name, there, folder):
                continue  # shown with its arena
            try:
                found.append(describe(name, folder))
                image = name + arenas.IMAGE
                found[-1]["tier"] = _tier(image, folder, found[-1]) if arenas.is_image(
                    image, there, folder) else None
            except FileNotFoundError:
                continue  # removed since the directory was read
            if folder is None or found[-1]["processes_alive"]:  # else a copy, or nobody's
                warn_if_wide(name, found[-1]["path"], int(found[-1]["mode"], 8))
    if args.json:
        text.print_json(text.document("list", arenas=found))
    elif not args.quiet:
        if found:
            rows = [row for one in found for row in _rows(one)]
            print(text.table(HEAD, rows, right=["SIZE", "USED", "BLOCKS"],
                             color=text.wants_color(args.no_color),
                             alarm=["dead", "damaged", "foreign", "stalled", "failed"]))
    return FINE


def describe(name: str, folder: str | None) -> dict[str, Any]:
    """One arena as it stands in the JSON document. What cannot be known is null."""
    path = objects.path_of(name, folder)
    status = os.stat(path, follow_symlinks=False)
    one: dict[str, Any] = dict(
        name=name, path=path, bytes=status.st_size, uid=status.st_uid,
        mode=f"{status.st_mode & 0o7777:04o}", state="", detail="", layout_version=None,
        block_bytes=None, blocks_total=None, blocks_free=None, used_blocks=None, used_bytes=None,
        processes_alive=None, processes_dead=None, tier=None)
    try:
        fd, verdict = arenas.look_up(name, folder)
    except Failure as e:
        one.update(state="unreadable", detail=str(e))
        return one
    one.update(state=verdict.kind, detail=verdict.why, layout_version=verdict.version or None)
    if fd is None:
        return one
    try:
        if verdict.geometry is not None and verdict.kind == objects.GOOD:
            one.update(_figures(fd, verdict.geometry))
    except Cut as e:
        one.update(state=objects.DAMAGED, detail=str(e))
    finally:
        os.close(fd)
    return one


def _figures(fd: int, g: Geometry) -> dict[str, Any]:
    free, alive, dead = glance(fd, g)
    used = g.blocks - free
    return dict(state=f"{dead} dead" if dead else "healthy" if alive else "idle",
                block_bytes=g.block_bytes, blocks_total=g.blocks, blocks_free=free,
                used_blocks=used, used_bytes=used * g.block_bytes, processes_alive=alive,
                processes_dead=dead)


def _tier(image: str, folder: str | None, arena: dict[str, Any]) -> dict[str, Any] | None:
    """The image beneath its arena: None if it went meanwhile."""
    from ..inspector import tiers

    try:
        one = describe(image, folder)
    except FileNotFoundError:
        return None
    state, used = one["state"], None
    if one["blocks_total"] is not None:
        with open(one["path"], "rb") as file:
            state = tiers.glance(file.fileno())
        if arena["block_bytes"] is not None:
            used = one["used_blocks"] * arena["block_bytes"]
    return dict(image=image, state=state, bytes=one["bytes"], slots=one["blocks_total"],
                slots_used=one["used_blocks"], used_bytes=used,
                processes_alive=one["processes_alive"], processes_dead=one["processes_dead"])


def _rows(one: dict[str, Any]) -> list[list[str]]:
    t = one["tier"]
    if t is None or t["slots"] is None or one["block_bytes"] is None:
        return [_row(one)]
    percent = f"{100 * t['slots_used'] // t['slots']}%"
    dead = f" (+{t['processes_dead']})" if t["processes_dead"] else ""
    return [_row(one), [
        f"  {text.clean(t['image'])}", text.size(t["bytes"]),
        f"{text.size(t['used_bytes'])} {percent}",
        f"{t['slots']} x {text.size(one['block_bytes'])}",
        f"{t['processes_alive']}{dead}", f"disk: {t['state']}", ""]]


def _row(one: dict[str, Any]) -> list[str]:
    name, layout = text.clean(one["name"]), str(one["layout_version"] or "-")
    if one["blocks_total"] is None:
        # Of another layout the last column says enough; the hashes are for --json.
        brief = not one["detail"] or one["state"] == objects.OTHER_LAYOUT
        why = "" if brief else f" ({one['detail']})"
        return [name, text.size(one["bytes"]), "-", "-", "-", one["state"] + why, layout]
    percent = f"{100 * one['used_blocks'] // one['blocks_total']}%"
    dead = f" (+{one['processes_dead']})" if one["processes_dead"] else ""
    return [name, text.size(one["bytes"]), f"{text.size(one['used_bytes'])} {percent}",
            f"{one['blocks_total']} x {text.size(one['block_bytes'])}",
            f"{one['processes_alive']}{dead}", one["state"], layout]
