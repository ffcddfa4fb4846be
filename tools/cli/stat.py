# SPDX-License-Identifier: Apache-2.0
"""`kvshm stat`: everything about one arena."""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import uuid
from datetime import UTC, datetime
from typing import Any

from ..inspector import census, chains, counters, layout, limits
from ..inspector.view import View
from . import text, tier
from .arenas import open_view
from .failures import FINE, USAGE, Failure
from .quota import tenants_table
from .rights import warn_if_wide

LEASES_SHOWN = 20


def run(args: argparse.Namespace) -> int:
    if args.count and not args.interval:
        raise Failure(USAGE, "", "--count needs --interval")
    with open_view(args.arena, args.dir) as view:
        if args.interval:
            from .interval import follow

            return follow(view, args.interval, args.count, args.json)
        found = describe(view)
        if args.dir is None or found["processes"]:
            warn_if_wide(view.name, view.path, int(found["arena"]["mode"], 8))
        if args.json:
            text.print_json(found)
        elif not args.quiet:
            print(_render(found, text.wants_color(args.no_color)))
    return FINE


def describe(view: View) -> dict[str, Any]:
    """The document. Its figures are read one after the other, not at one moment."""
    words = view.words()
    processes = census.processes(view, words)
    superblock = view.superblock
    head, tail = int(superblock["marks_head"]), int(superblock["marks_tail"])
    return text.document(
        "stat",
        arena=_arena(view, processes),
        sizes=_sizes(view, processes),
        stats=census.tally(view, words) | census.totals(view),
        processes=[dataclasses.asdict(p) for p in processes],
        tenants=[dataclasses.asdict(t) for t in limits.tenants(view, words)],
        pins=limits.pins(view, words),
        chains=chains.tally(view, words),
        leases=[dataclasses.asdict(lease) for lease in census.leases(view)],
        policy=_policy(view),
        tier=tier.describe(view),
        queues=tier.describe_queues(view),
        marks_left=max(0, head - tail),
        waiting_for_space=bool(int(superblock["space"]) & 1))


def _arena(view: View, processes: list[census.Process]) -> dict[str, Any]:
    s, status = view.superblock, os.fstat(view.fd)
    dead = sum(not p.alive for p in processes)
    return dict(
        name=view.name, path=view.path, uuid=str(uuid.UUID(bytes=s["uuid"].tobytes())),
        layout_version=int(s["layout_version"]),
        created_at=text.moment(int(s["created_at"])),
        creator_pid=int(s["creator_pid"]), uid=status.st_uid,
        mode=f"{status.st_mode & 0o7777:04o}",
        state=f"{dead} dead" if dead else "healthy" if processes else "idle",
        raw=bool(s["raw"]), fingerprint=s["fingerprint"].tobytes().hex(),
        identity=None if s["raw"] else _json(s["identity"]),
        space_epoch=int(s["space_epoch"]),
        epochs=sorted({p.epoch for p in processes if p.epoch is not None}),
        foreign_attaches=_foreign(s["foreign"]),
        charged_group=bytes(s["charged_group"]).decode("utf-8", "replace") or None)


def _json(text: bytes) -> Any:
    try:
        return json.loads(bytes(text))
    except ValueError:
        return None


def _foreign(note: Any) -> dict[str, Any] | None:
    """Who came with another identity, was refused, and shares nothing of this arena."""
    if not note["count"]:
        return None
    return dict(count=int(note["count"]), last_at=text.moment(int(note["at"])),
                last_pid=int(note["pid"]), last_identity=_json(note["identity"]))


def _sizes(view: View, processes: list[census.Process]) -> dict[str, Any]:
    g = view.geometry
    lock_known = [p.locked_bytes for p in processes if p.locked_bytes is not None]
    pinned: bool | None = None
    if view.page > layout.PAGE:
        pinned = True  # pages of hugetlbfs are never swapped
    elif lock_known:
        pinned = any(n >= g.bytes for n in lock_known)
    return dict(
        bytes=g.bytes, block_bytes=g.block_bytes, data_offset=g.data_off,
        metadata_bytes=g.data_off, fixed_bytes=layout.fixed_bytes(g),
        metadata_bytes_per_block=round(layout.block_metadata_bytes(g) / g.blocks, 2),
        private_bytes_per_block=4, private_bytes=4 * g.blocks,
        page_bytes=int(view.superblock["page_bytes"]), pinned=pinned,
        numa=int(view.superblock["numa"]))


def _policy(view: View) -> dict[str, Any]:
    p = view.superblock["policy"].copy()
    levels = p["levels"]
    return dict(version=int(p["version"]) // 2, name=bytes(p["name"]).decode("utf-8", "replace"),
                sample=int(p["sample"]), flags=layout.policy_flags(int(p["flags"])),
                age_period=int(p["age_period"]), young=int(p["young"]), small=int(p["small"]),
                shift=(levels & 31).tolist(), rank=(levels >> 8 & 255).tolist(),
                controller=_controller(view) if int(p["flags"]) & layout.POLICY_TOUCHES else None)


def _policy_text(policy: dict[str, Any]) -> dict[str, Any]:
    c = policy["controller"]
    told = "-" if c is None else (
        f"weight {c['weight']} in force, {text.many(c['switches'], 'switch', 'switches')}, "
        f"{text.many(c['records'], 'record')} ({c['lost']} lost), hits by weight "
        f"{' '.join(map(str, c['hits']))}, last step {c['last_step'] or 'never'}")
    return policy | {"flags": ", ".join(policy["flags"]) or "-", "controller": told}


def _controller(view: View) -> dict[str, Any]:
    """Of `adaptive`: which weight is in force, and what was learnt."""
    s = view.shadow.copy()
    at = int(view.superblock["created_at"]) + int(s["at"])
    return dict(weight=int(s["weight"]), switches=int(s["switches"]), records=int(s["records"]),
                lost=int(s["lost"]), hits=[round(float(h), 1) for h in s["hits"]],
                last_step=text.moment(at) if s["at"] else None)


def _render(d: dict[str, Any], color: bool) -> str:
    arena = dict(d["arena"])
    if arena["identity"] is not None:
        arena["identity"] = json.dumps(arena["identity"])
    arena["epochs"] = ", ".join(map(str, arena["epochs"])) or None
    if (note := arena["foreign_attaches"]) is not None:
        arena["foreign_attaches"] = (
            f"{text.many(note['count'], 'process', 'processes')} of another identity refused, last "
            f"{note['last_at']}, pid {note['last_pid']}: {json.dumps(note['last_identity'])}")
    arena["charged_group"] = text.clean(arena["charged_group"] or "") or None
    sizes = {name: f"{value} ({text.size(value)})" if name.endswith(("bytes", "offset")) else value
             for name, value in d["sizes"].items()}
    sizes["pinned"] = {True: "yes", False: "no", None: "unknown, nobody attached can be asked"}[
        d["sizes"]["pinned"]]
    gauges = counters.gauges()
    totals = {k: v for k, v in d["stats"].items() if k not in gauges}
    parts = [
        f"taken_at {d['taken_at']}; figures are read one after the other",
        text.pairs("arena", {k: "-" if v is None else v for k, v in arena.items()}),
        text.pairs("sizes", sizes),
        text.pairs("blocks", {k: d["stats"][k] for k in gauges}),
        "# processes\n" + (_processes(
            d["processes"], d["stats"]["blocks_total"] * d["sizes"]["block_bytes"], color)
            or "none"),
        "# leases\n" + (_leases(d["leases"], color) or "none"),
        "# tenants\n" + (tenants_table(d["tenants"], color) or "none"),
        text.pairs("pins", {k: "-" if v is None else v for k, v in d["pins"].items()}),
        text.pairs("chains", {k: "-" if v is None else v for k, v in d["chains"].items()}),
        tier.render(d["tier"], d["stats"], color),
        tier.render_queues(d["queues"]),
        text.pairs("totals", totals),
        text.pairs("policy", _policy_text(d["policy"]) | {
            "marks_left": d["marks_left"], "waiting_for_space": d["waiting_for_space"]}),
    ]
    return "\n\n".join(parts)


def _device(p: dict[str, Any], data_bytes: int) -> str:
    """How much of the data is registered with the process's device."""
    state, got = str(p["device_state"]), int(p["device_bytes"])
    if state in ("none", "refused", "registered"):
        return {"none": "-", "registered": "all"}.get(state, state)
    return f"{state} {100 * got // max(1, data_bytes)}%"


def _processes(found: list[dict[str, Any]], data_bytes: int, color: bool) -> str:
    now = datetime.now(UTC).timestamp()
    rows = []
    for p in found:
        state = "alive" if p["alive"] else "DEAD"
        if p["alive"] and p["condition"] in ("stopped", "traced", "zombie"):
            state += f", {p['condition']}"
        state += ", device busy" if p["device_busy"] else ""
        state += ", draining" if p["draining"] else ""
        if p["quota_blocks"]:
            state += f", {p['held_blocks'] + p['filling_blocks']} of {p['quota_blocks']} blocks"
        c = p["counters"]
        rows.append([str(p["slot"]), str(p["pid"]), text.clean(p["label"]), state,
                     text.age(max(0, now - p["attached_at"])), str(p["held_blocks"]),
                     str(p["filling_blocks"]), str(p["leases"]), _device(p, data_bytes),
                     *(str(c.get(name, 0))
                       for name in ("lookups_total", "hits_total", "allocated_total"))])
    if not rows:
        return ""
    head = ["SLOT", "PID", "LABEL", "STATE", "SINCE", "HELD", "FILLING", "LEASES", "DEVICE",
            "LOOKUPS", "HITS", "ALLOCATED"]
    return text.table(head, rows, color=color, alarm=["DEAD"],
                      right=[h for h in head if h not in ("LABEL", "STATE", "DEVICE")])


def _leases(found: list[dict[str, Any]], color: bool) -> str:
    shown = sorted(found, key=lambda lease: -lease["age_seconds"])[:LEASES_SHOWN]
    if not shown:
        return ""
    rows = [[str(x["slot"]), str(x["pid"]), text.clean(x["tag"]) or "-", str(x["count"]),
             text.age(x["age_seconds"])] for x in shown]
    made = text.table(["SLOT", "PID", "TAG", "BLOCKS", "AGE"], rows, color=color,
                      right=["SLOT", "PID", "BLOCKS", "AGE"])
    more = len(found) - len(shown)
    return made + (f"\nand {more} younger ones (--json shows all)" if more else "")
