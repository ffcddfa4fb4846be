# SPDX-License-Identifier: Apache-2.0
"""`kvshm quota`: what tenants have and may have, and how many blocks may be pinned."""
from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from ..inspector import limits
from ..inspector.view import View
from . import text
from .arenas import open_view
from .failures import FINE, USAGE, Failure, from_core


def run(args: argparse.Namespace) -> int:
    if args.tenant is None and (args.blocks is not None or args.weight is not None):
        raise Failure(USAGE, "", "--blocks and --weight are a tenant's", "--tenant NAME or NUMBER")
    with open_view(args.arena, args.dir) as view:
        if args.blocks is not None or args.weight is not None or args.pins is not None:
            _set(view, args)
        found = describe(view, args.tenant)
        if args.json:
            text.print_json(found)
        elif not args.quiet:
            print(_render(found, text.wants_color(args.no_color)))
    return FINE


def describe(view: View, only: str | None = None) -> dict[str, Any]:
    words = view.words()
    rows = [dataclasses.asdict(t) for t in limits.tenants(view, words)
            if only is None or only in (str(t.tenant), t.name)]
    return text.document("quota", name=view.name, path=view.path,
                         blocks_total=view.geometry.blocks, tenants=rows,
                         pins=limits.pins(view, words))


def amount(value: str, blocks: int) -> int | None:
    """Blocks from a number, a share such as 10%, or none."""
    if value == "none":
        return None
    try:
        got = (int(blocks * float(value[:-1]) / 100) if value.endswith("%") else int(value))
    except (ValueError, OverflowError):
        got = -1
    if not 0 <= got < 1 << 32:
        raise Failure(USAGE, "", f"{value!r}", "wanted a number of blocks, a share as 10%, or none")
    return got


def tenant_of(arena: Any, value: str) -> int:
    """A number, or that of a name."""
    return int(value) if value.isdecimal() else int(arena.tenant(value))


def _set(view: View, args: argparse.Namespace) -> None:
    import kvshm

    total = view.geometry.blocks
    try:
        with kvshm.Arena.attach(view.name, dir=view.folder, helper=False, pin="off",
                                label="kvshm quota") as arena:
            if args.pins is not None:
                arena.set_pin_budget(amount(args.pins, total))
            if args.tenant is None or (args.blocks is None and args.weight is None):
                return
            tenant = tenant_of(arena, args.tenant)
            had = next((t for t in arena.tenants() if t.tenant == tenant), None)
            quota = had.quota if had else None
            weight = had.weight if had else None
            if args.blocks is not None:
                quota = amount(args.blocks, total)
                if quota == 0:
                    raise Failure(USAGE, "", "a quota of no block", "wanted 1 or more, or none")
            if args.weight is not None:
                weight = amount(args.weight, 0)
            arena.set_tenant(tenant, quota=quota, weight=weight)
    except kvshm.Error as e:
        raise from_core(e, view.name) from None


def _render(d: dict[str, Any], color: bool) -> str:
    pins = d["pins"]
    budget = "no budget" if pins["budget_blocks"] is None else f"{pins['budget_blocks']} may be"
    return (tenants_table(d["tenants"], color) or "no tenant has a block, a name or a limit") + (
        f"\n{text.many(pins['pinned_blocks'], 'block')} pinned (priority 100), {budget}")


def tenants_table(rows: list[dict[str, Any]], color: bool) -> str:
    if not rows:
        return ""
    head = ["TENANT", "NAME", "USED", "QUOTA", "WEIGHT", "SHARE"]
    cells = [[str(t["tenant"]), text.clean(t["name"]) or "-", str(t["used_blocks"]),
              *("-" if t[k] is None else str(t[k])
                for k in ("quota_blocks", "weight", "share_blocks"))] for t in rows]
    return text.table(head, cells, color=color, right=[h for h in head if h != "NAME"])
