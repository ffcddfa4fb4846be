# SPDX-License-Identifier: Apache-2.0
"""`kvshm verify`: are all invariants true?"""
from __future__ import annotations

import argparse
import itertools
import sys
from typing import Any

from ..inspector import census, invariants, layout, recheck
from ..inspector.invariants import Broken
from ..inspector.view import View
from . import text
from .arenas import open_view
from .failures import FINE, FOUND, from_core

IDS_SHOWN = 8
FINDINGS_KEPT = 100


def run(args: argparse.Namespace) -> int:
    if args.tier:
        from . import verify_tier

        return verify_tier.run(args)
    with open_view(args.arena, args.dir) as view:
        result = recheck.check(view, quiet=args.quiet_arena)
        processes = census.processes(view, view.words())
        core = _ask_core(view) if args.core else None
        by_number = {number: list(found) for number, found in itertools.groupby(
            result.broken, key=lambda b: b.invariant)}
        broken = sorted(set(by_number) | {b["invariant"] for b in core or []})
        if args.json:
            text.print_json(_document(view, result, by_number, core, args.all))
        elif not args.quiet:
            print(_render(result, by_number, core, processes, args.all,
                          text.wants_color(args.no_color)))
    if not broken:
        return FINE
    hint = f"`kvshm reap {view.name}` shows what can be given back" if 7 in broken else \
        "report it, with `kvshm verify --json --all`"
    print(f"kvshm: {view.name}: {text.many(len(broken), 'invariant')} broken: {hint}",
          file=sys.stderr)
    return FOUND


def _ask_core(view: View) -> list[dict[str, Any]]:
    """The library's own check. It attaches, which needs a slot and reaps the dead."""
    import kvshm

    try:
        with kvshm.Arena.attach(view.name, dir=view.folder, helper=False, pin="off",
                                label="kvshm verify") as arena:
            return [{"invariant": b.invariant, "id": _or_none(b.id), "what": b.what}
                    for b in arena.is_valid()]
    except kvshm.Error as e:
        raise from_core(e, view.name) from None


def _document(view: View, result: recheck.Result, by_number: dict[int, list[Broken]],
              core: list[dict[str, Any]] | None, everything: bool) -> dict[str, Any]:
    listed = []
    for number, meaning in invariants.MEANING.items():
        found = by_number.get(number, [])
        kept = found if everything else found[:FINDINGS_KEPT]
        listed.append({"number": number, "meaning": meaning, "broken": len(found), "findings": [
            {"id": _or_none(b.id), "what": b.what,
             "words": [f"{w:016x}" for w in b.words]} for b in kept]})
    return text.document(
        "verify", name=view.name, path=view.path, broken=len(result.broken),
        readings=result.readings, live_processes=result.live_processes,
        in_transition_blocks=result.in_transition, unfindable_blocks=result.unfindable_blocks,
        invariants=listed, core=core)


def _render(result: recheck.Result, by_number: dict[int, list[Broken]],
            core: list[dict[str, Any]] | None, processes: list[census.Process],
            everything: bool, color: bool) -> str:
    lines = []
    for number, meaning in invariants.MEANING.items():
        found = by_number.get(number, [])
        lines.append([f"I{number}", meaning, "BROKEN" if found else "ok"])
        for what, group in itertools.groupby(sorted(found, key=lambda b: (b.what, b.id)),
                                             key=lambda b: b.what):
            lines.append(["", "  " + _describe(what, [b.id for b in group], everything), ""])
        if number == 7 and found:
            lines += [["", "  " + _owner(p), ""] for p in processes if not p.alive]
    parts = [text.table(["", "INVARIANT", ""], lines, color=color, alarm=["BROKEN"])]
    if result.live_processes:
        parts.append(f"{text.many(result.live_processes, 'live process', 'live processes')} "
                     f"({result.in_transition} blocks on their way to another life); "
                     + text.many(result.readings, "reading"))
        parts += [f"process {p.pid} ({text.clean(p.label)}) is {p.condition}: what it was doing "
                  "stays half done" for p in processes if p.condition in ("stopped", "traced")]
    if result.unfindable_blocks:
        parts.append("READY without an index entry, so that no match can find them: "
                     + text.many(result.unfindable_blocks, "block"))
    if core is not None:
        parts.append(f"core: {len(core)} findings" + "".join(
            f"\n  I{b['invariant']} {_block(b['id'])}: {b['what']}" for b in core))
    return "\n".join(parts)


def _describe(what: str, ids: list[int], everything: bool) -> str:
    real = [i for i in ids if i != layout.NONE]
    if not real:
        return what if len(ids) == 1 else f"{len(ids)} times: {what}"
    shown = real if everything else real[:IDS_SHOWN]
    more = ", ..." if len(real) > len(shown) else ""
    return f"{text.many(len(real), 'block')}: {what}: " \
        + ", ".join(map(str, shown)) + more


def _or_none(block: int) -> int | None:
    return None if block == layout.NONE else block


def _block(number: int | None) -> str:
    return "the arena" if number is None else f"block {number}"


def _owner(p: census.Process) -> str:
    waits = ", a device may still write for it" if p.device_busy or p.draining else ""
    return f"pid {p.pid} ({text.clean(p.label)}, slot {p.slot}) is gone and holds " \
        f"{p.held_blocks + p.filling_blocks + p.evicting_blocks} blocks{waits}"
