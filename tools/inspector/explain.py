# SPDX-License-Identifier: Apache-2.0
"""The first key of a prompt that an arena does not answer, and why, as far as memory shows it.

A block that goes takes its key along; the arena remembers the last of those (`ghosts`). Nothing
here needs the library.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import census, ghosts, layout
from .view import Array, View, holders_of, state_of

# What a key's absence comes from; docs/inspector.md has them.
REASONS = ("present", "identity", "epoch", "filling", "left", "evicting", "duplicate", "private",
           "evicted", "removed", "closed", "never stored", "not remembered")
FIELDS = ("model", "weights", "dtype", "layout", "parallel", "namespace", "block_tokens")
# Of these, each took a published block out of the arena.
_GONE = ("evicted_total", "removed_total", "closed_total")
_HOW = {"evicted": "evicted for another block",
        "removed": "removed on request (evict, clear, reset)",
        "closed": "closed at its last release, as asked for (no-cache)"}


@dataclass
class Finding:
    """found: keys before the first missing one. missing: its place, None where all are there.
    later: keys behind it that are there. block, pids: whose hands it is in. when: it went, in
    seconds since the epoch."""

    keys: int
    found: int = 0
    missing: int | None = None
    key: str | None = None
    reason: str = "present"
    why: str = "every key is there"
    block: int | None = None
    pids: list[int] = field(default_factory=list)
    when: int | None = None
    later: int = 0
    fields: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class _Block:
    """One that has the key now."""

    id: int
    state: int
    holders: int
    flags: int
    indexed: bool


def explain(view: View, keys: Array) -> Finding:
    """keys: (n, 16) uint8, in the order of the prompt."""
    finding = Finding(len(keys))
    blocks = _blocks_of(view, keys)
    there = [any(_matchable(b) for b in blocks.get(bytes(key), ())) for key in keys]
    if all(there):
        finding.found = len(keys)
        return finding
    at = finding.missing = finding.found = there.index(False)
    finding.key, finding.later = bytes(keys[at]).hex(), sum(there[at:])
    _say(finding, view, blocks.get(bytes(keys[at]), []))
    return finding


def compare(own: dict[str, Any] | None, given: dict[str, Any], space_epoch: int) -> Finding | None:
    """How another identity differs from the arena's; None: not at all. own: None = raw."""
    different = [{"field": name, "arena": (own or {}).get(name), "given": given.get(name)}
                 for name in FIELDS if own is not None and own.get(name) != given.get(name)]
    if different:
        what = "; ".join(f"{d['field']} is {d['arena']!r} here, {d['given']!r} there"
                         for d in different)
        return Finding(0, reason="identity", fields=different,
                       why=f"another identity, whose keys are all different: {what}")
    epoch = given.get("epoch", space_epoch)
    if epoch != space_epoch:
        return Finding(0, reason="epoch",
                       fields=[{"field": "epoch", "arena": space_epoch, "given": epoch}],
                       why=f"keys of epoch {epoch}; the arena is in {space_epoch}, since all of "
                           f"before was made unreachable")
    return None


def _say(finding: Finding, view: View, blocks: list[_Block]) -> None:
    order = {layout.FILLING: 0, layout.EVICTING: 1}
    blocks = sorted(blocks, key=lambda b: order.get(b.state, 2))
    if not blocks:
        _say_absent(finding, view, bytes.fromhex(finding.key or ""))
        return
    block = blocks[0]
    people = {p.slot: p for p in census.processes(view, view.words())}
    holders = [people[slot] for slot in range(layout.SLOTS)
               if block.holders >> slot & 1 and slot in people]
    finding.block, finding.pids = block.id, [p.pid for p in holders]
    names = ", ".join(f"pid {p.pid} ({p.label}, {p.condition or 'alive'})" for p in holders)
    where = f"block {block.id}"
    if block.state == layout.FILLING:
        alive = any(p.alive for p in holders)
        finding.reason = "filling" if alive else "left"
        quiet = "" if block.flags & layout.ANNOUNCED else ", unannounced"
        finding.why = f"{where} is being filled{quiet} by {names or 'nobody that is attached'}"
        if not alive:
            finding.why += f"; `kvshm reap {view.name}` gives it back"
    elif block.state == layout.EVICTING:
        finding.reason, finding.why = "evicting", f"{where} is being evicted at this moment"
    elif block.flags & layout.DUPLICATE:
        finding.reason = "duplicate"
        finding.why = (f"{where} is a second copy, held by {names or 'nobody'}; the one that was "
                       f"to be found is gone")
    else:
        finding.reason = "private"
        finding.why = (f"{where} was stored without an entry in the index, held by "
                       f"{names or 'nobody'}: nobody else finds it")


def _say_absent(finding: Finding, view: View, key: bytes) -> None:
    totals = census.totals(view)
    gone = sum(totals[name] for name in _GONE)
    ghost = ghosts.find(view, key)
    if ghost:
        finding.reason, finding.when = ghost.reason, ghost.when
        finding.why = f"it was here, and was {_HOW[ghost.reason]}"
    elif finding.later:
        finding.reason = "evicted"
        finding.why = (f"it was here: {finding.later} of the keys behind it still are, and those "
                       f"are stored after it")
    elif not gone:
        finding.reason = "never stored"
        finding.why = "no block has ever left this arena"
    else:
        finding.reason = "not remembered"
        finding.why = (f"not remembered: never stored, or evicted long ago; {gone} blocks have "
                       f"left this arena, whose memory has room for {ghosts.room(view)} of them")


def _matchable(block: _Block) -> bool:
    return block.indexed and block.state in (layout.READY, layout.READY_LAST)


def _blocks_of(view: View, keys: Array) -> dict[bytes, list[_Block]]:
    """The blocks that have these keys, of one life each: others may go on meanwhile."""
    wanted = {bytes(key) for key in keys}
    lows = np.ascontiguousarray(keys[:, :8]).view("<u8").ravel()
    before = np.ascontiguousarray(view.hot["seq"])
    held = np.ascontiguousarray(view.hot["key"])
    words, flags = view.words(), np.ascontiguousarray(view.hot["flags"])
    same = (before == view.hot["seq"]) & np.isin(held[:, 0], lows)
    entries = view.index.reshape(-1, layout.WAYS)
    found: dict[bytes, list[_Block]] = {}
    for i in np.flatnonzero(same).tolist():
        key = held[i].tobytes()
        state = int(state_of(words[i:i + 1])[0])
        if key in wanted and state != layout.FREE:
            found.setdefault(key, []).append(_Block(
                i, state, int(holders_of(words[i:i + 1])[0]), int(flags[i]),
                _indexed(entries, held[i], i)))
    return found


def _indexed(entries: Array, key: Array, block: int) -> bool:
    """Is there an entry that leads to this block, in one of the key's two buckets?"""
    for half in key.tolist():
        for entry in entries[half * len(entries) >> 64].tolist():
            if entry & 0xFFFFFFFF == block + 1 and not entry & layout.TENTATIVE:
                return True
    return False
