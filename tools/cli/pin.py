# SPDX-License-Identifier: Apache-2.0
"""`kvshm pin` and `kvshm unpin`: blocks that are never evicted (priority 100), by key or tenant."""
from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from ..inspector import layout, limits
from ..inspector.view import Array, View, is_ready, state_of
from . import text
from .arenas import open_view
from .explain import read_file, read_keys
from .failures import FINE, FOUND, USAGE, Failure, from_core

NORMAL, PINNED = 50, 100


def run(args: argparse.Namespace) -> int:
    import kvshm

    pins = args.verb == "pin"
    with open_view(args.arena, args.dir) as view:
        try:
            with kvshm.Arena.attach(view.name, dir=view.folder, helper=False, pin="off",
                                    label=f"kvshm {args.verb}") as arena:
                keys = _keys(view, arena, args)
                done, missing, why = _set(arena, keys, pins, getattr(args, "seconds", None))
        except kvshm.Error as e:
            raise from_core(e, view.name) from None
        state = limits.pins(view, view.words())
        if args.json:
            text.print_json(text.document(args.verb, name=view.name, path=view.path, done=done,
                                          missing=missing, refused=why, pins=state))
        elif not args.quiet:
            verb = "pinned" if pins else "unpinned"
            print(f"{text.many(done, 'block')} {verb}, {text.many(missing, 'key')} not there"
                  + (f"; {why}" if why else "")
                  + f"; {state['pinned_blocks']} of the arena are pinned")
    return FOUND if missing or why else FINE


def _keys(view: View, arena: Any, args: argparse.Namespace) -> Array:
    if args.keys is not None:
        return read_keys(read_file(args.keys), args.keys)
    words = view.words()
    wanted = is_ready(state_of(words)) & (view.hot["flags"] & (
        layout.DUPLICATE | layout.PRIVATE) == 0)
    if args.tenant is not None:
        from .quota import tenant_of

        wanted &= view.hot["tenant"] == tenant_of(arena, args.tenant)
    if args.verb == "unpin":
        wanted &= limits.pinned(view, words)
    elif args.tenant is None:
        raise Failure(USAGE, "", "pin what?", "--keys FILE or --tenant NAME")
    return np.ascontiguousarray(view.hot["key"][wanted]).view(np.uint8).reshape(-1, 16)


def _set(arena: Any, keys: Array, pins: bool, seconds: float | None) -> tuple[int, int, str]:
    """How many got it, how many are not there, and why the rest was refused."""
    import kvshm

    done = missing = 0
    for first in range(0, len(keys), 1024):
        with arena.match_scattered(keys[first:first + 1024], touch=False, tag="pin") as found:
            for handle in found.handles:
                if handle is None:
                    missing += 1
                    continue
                try:
                    arena.set_priority(handle, PINNED if pins else NORMAL, seconds)
                except kvshm.OverPinBudget as e:
                    return done, missing, str(e)
                done += 1
    return done, missing, ""
