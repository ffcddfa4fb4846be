# SPDX-License-Identifier: Apache-2.0
"""`kvshm verify --tier`: is what a tier's files hold what was stored?"""
from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from ..replay.progress import Progress
from ..tierfile import check, checks, superblock
from ..tierfile.check import MEANING, STATES, Result
from ..tierfile.image import Image, name_of
from ..tierfile.reader import File, NoTierFile
from ..tierfile.tier import Part, Tier, Unusable
from . import text
from .arenas import open_view
from .failures import DENIED, FINE, FOUND, LAYOUT, NO_ARENA, NOT_READY, USAGE, Failure

SLOTS_SHOWN = 8
FINDINGS_KEPT = 100
READINGS, PAUSE = 3, 0.05


def run(args: argparse.Namespace) -> int:
    if args.core:
        raise Failure(USAGE, "", "--core is of arenas, and --tier of files")
    try:
        checks.load()
    except ImportError:
        raise Failure(USAGE, "", "the bytes of a tier are checked by the package xxhash",
                      "pip install 'kvshm[tools]'") from None
    with ExitStack() as stack:
        tier = stack.enter_context(_open(args.tier))
        image = None
        if args.arena is not None:
            view = stack.enter_context(open_view(name_of(args.arena), args.dir))
            image = Image(view)
            _same_tier(tier, image)
        live = tier.live()
        progress = stack.enter_context(Progress(args.quiet))
        try:
            result = check.Check(tier, image, time.time()).run(
                READINGS if live and not args.quiet_arena else 1, PAUSE, progress.stage,
                progress.advance)
        except TimeoutError as e:
            raise Failure(NOT_READY, tier.parts[0].file.path, f"the disk does not answer ({e})",
                          "try again when it does") from None
        found = result.damaged + sum(bool(_wrong(tier, part)) for part in tier.parts)
        stack.pop_all().close()  # the bar must have gone before anything is printed
        if args.json:
            text.print_json(_document(tier, image, result, live, args.all))
        elif not args.quiet:
            print(_render(tier, image, result, live, args.all, text.wants_color(args.no_color)))
    if not found:
        return FINE
    print(f"kvshm: {tier.parts[0].file.path}: {text.many(result.damaged, 'slot')} damaged"
          + ("" if found == result.damaged else ", and not all of its files are whole")
          + ": a load of one is a miss", file=sys.stderr)
    return FOUND


def _open(paths: list[str]) -> Tier:
    files: list[File] = []
    try:
        for path in paths:
            try:
                files.append(File(path))
            except NoTierFile:
                raise Failure(LAYOUT, path, "is no regular file and no block device") from None
            except FileNotFoundError:
                raise Failure(NO_ARENA, path, "there is no such file",
                              "an ARENA stands before --tier") from None
            except OSError as e:
                code = DENIED if isinstance(e, PermissionError) else LAYOUT
                raise Failure(code, path, f"cannot be read ({e.strerror})") from None
        return Tier(files)
    except Unusable as e:
        remedy = {"set": "name all files of one tier",
                  superblock.OTHER_VERSION: "use the kvshm that made it"}.get(e.kind, "")
        raise Failure(USAGE if e.kind == "set" else LAYOUT, e.path, e.what, remedy) from None
    except BaseException:
        for file in files:
            file.close()
        raise


def _same_tier(tier: Tier, image: Image) -> None:
    path, name = tier.parts[0].file.path, image.view.name
    if tier.block.owner != image.owner:
        raise Failure(LAYOUT, path, f"belongs to arena {text.clean(tier.block.owner_name)} "
                      f"({tier.block.owner}), and {name} is another ({image.owner})",
                      "leave ARENA out")
    wrong = image.wrong(tier.shape.slots)
    if wrong:
        raise Failure(LAYOUT, name, f"is not the image of {path}: {wrong}", "leave ARENA out")


def _wrong(tier: Tier, part: Part) -> list[str]:
    """Of a file as a whole."""
    said = [f"superblock {'AB'[i]}: {copy.state}" + (f" ({copy.why})" if copy.why else "")
            for i, copy in enumerate(part.copies)
            if copy.state not in (superblock.GOOD, superblock.EMPTY)]
    missing = _missing(tier, part)
    return said + ([f"{missing} bytes short"] if missing else [])


def _missing(tier: Tier, part: Part) -> int:
    return max(0, tier.shape.bytes_of(part.block.file) - part.file.bytes)


def _slots(result: Result, state: int) -> Any:
    return np.flatnonzero(result.states == state)


def _document(tier: Tier, image: Image | None, result: Result, live: bool,
              everything: bool) -> dict[str, Any]:
    block, shape = tier.block, tier.shape
    files = [{"path": part.file.path, "file": part.block.file, "bytes": part.file.bytes,
              "missing_bytes": _missing(tier, part), "direct": part.file.direct,
              "why": part.file.why, "sequence": part.block.sequence,
              "superblocks": [{"state": copy.state, "sequence": copy.sequence,
                               "version": copy.version, "why": copy.why}
                              for copy in part.copies]} for part in tier.parts]
    findings: list[dict[str, Any]] = []
    for state in range(check.RECORD, len(STATES)):
        slots = _slots(result, state)
        for slot in map(int, slots if everything else slots[:FINDINGS_KEPT]):
            r = result.records[slot]
            findings.append({
                "slot": slot, "file": slot % shape.files, "offset": shape.slot_offset(slot),
                "state": STATES[state], "key": bytes(r["key"]).hex(), "length": int(r["length"]),
                "what": result.what.get(slot, MEANING[STATES[state]])})
    return text.document(
        "verify-tier", files=files, engine=tier.reader.engine, why=tier.reader.why,
        set=block.set, owner=block.owner, owner_name=block.owner_name,
        fingerprint=block.fingerprint, identity=block.identity, epoch=block.epoch,
        codec=block.codec, block_bytes=shape.block_bytes, slot_bytes=shape.slot_bytes,
        slots=shape.slots, live=live, arena=image.view.name if image else None,
        readings=result.readings, damaged=result.damaged,
        states={name: result.count(state) for state, name in enumerate(STATES)},
        findings=findings)


def _render(tier: Tier, image: Image | None, result: Result, live: bool, everything: bool,
            color: bool) -> str:
    lines = []
    for state, name in enumerate(STATES):
        slots = _slots(result, state)
        if not len(slots) and state not in (check.EMPTY, check.OK):
            continue
        damage = state >= check.RECORD
        lines.append([name, str(len(slots)), MEANING[name], "DAMAGED" if damage else ""])
        if damage:
            shown = slots if everything else slots[:SLOTS_SHOWN]
            lines.append(["", "", "  slot " + ", ".join(map(str, shown))
                          + (", ..." if len(slots) > len(shown) else ""), ""])
    parts = [text.table(["STATE", "SLOTS", "", ""], lines, right=["SLOTS"], color=color,
                        alarm=["DAMAGED"])]
    for part in tier.parts:
        how = ", ".join(filter(None, ["direct" if part.file.direct else part.file.why,
                                      *_wrong(tier, part)]))
        parts.append(f"{part.file.path}: file {part.block.file + 1} of {tier.shape.files}, {how}")
    why = f" ({tier.reader.why})" if tier.reader.why else ""
    parts.append(f"read by {tier.reader.engine}{why}; {text.many(result.readings, 'reading')}")
    owner = text.clean(tier.block.owner_name)
    parts.append(f"of arena {owner}, " + ("in use" if live else "not in use") + (
        f"; compared with {image.view.name}" if image else "") + (
        ", which was not asked: a slot that is being written may count as damaged"
        if live and not image and result.damaged else ""))
    return "\n".join(parts)
