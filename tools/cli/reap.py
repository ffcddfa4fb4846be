# SPDX-License-Identifier: Apache-2.0
"""`kvshm reap`: what dead processes left; --yes gives it back through the core."""
from __future__ import annotations

import argparse
from typing import Any

from ..inspector import census
from ..inspector.view import View
from . import text
from .arenas import open_view
from .failures import FINE, FOUND, from_core

_FIELDS = ("held_blocks", "filling_blocks", "evicting_blocks")


def run(args: argparse.Namespace) -> int:
    with open_view(args.arena, args.dir) as view:
        before = _dead(view)
        after = before
        if before and args.yes:
            _reap(view)
            after = _dead(view)
        if args.json:
            text.print_json(text.document("reap", name=view.name, path=view.path, done=args.yes,
                                          dead=before, left=after))
        elif not args.quiet:
            print(_render(view, before, after, args))
    # Without --yes there is work; with it, something could not be given back yet.
    return FOUND if after else FINE


def _dead(view: View) -> list[dict[str, Any]]:
    """Slots whose process is gone, and what is theirs."""
    return [{"slot": p.slot, "pid": p.pid, "label": p.label, "attached_at": p.attached_at,
             "draining": p.draining or p.device_busy, **{f: getattr(p, f) for f in _FIELDS}}
            for p in census.processes(view, view.words()) if not p.alive]


def _reap(view: View) -> None:
    """Attaching gives back the slot that it takes, reaping the others."""
    import kvshm

    try:
        with kvshm.Arena.attach(view.name, dir=view.folder, helper=False, pin="off",
                                label="kvshm reap") as arena:
            arena.reap()
    except kvshm.Error as e:
        raise from_core(e, view.name) from None


def _render(view: View, before: list[dict[str, Any]], after: list[dict[str, Any]],
            args: argparse.Namespace) -> str:
    if not before:
        return "nothing to give back: no process died here"
    rows = [[str(p["slot"]), str(p["pid"]), text.clean(p["label"]),
             *(str(p[f]) for f in _FIELDS), "yes" if p["draining"] else "no"] for p in before]
    head = ["SLOT", "PID", "LABEL", "HELD", "FILLING", "EVICTING", "DRAINING"]
    made = text.table(head, rows, right=[h for h in head if h != "LABEL"],
                      color=text.wants_color(args.no_color))
    if not args.yes:
        return made + f"\nnothing was changed; `kvshm reap --yes {view.name}` gives this back"
    given = {f: sum(p[f] for p in before) - sum(p[f] for p in after) for f in _FIELDS}
    end = "\ngave back " + ", ".join((
        text.many(len(before) - len(after), "slot"), text.many(given["held_blocks"], "hold"),
        text.many(given["filling_blocks"], "fill"),
        text.many(given["evicting_blocks"], "eviction")))
    if after:
        end += "; the rest waits for a device: try again in a few seconds"
    return made + end
