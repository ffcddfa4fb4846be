# SPDX-License-Identifier: Apache-2.0
"""`kvshm warmup`: brings what a tier has of given prompts into memory, and sends them through a
running engine if told to."""
from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..inspector import tiers
from ..inspector.view import View
from ..replay.progress import Progress
from . import warmup_report
from .arenas import open_view
from .engine_http import Answer, Engine, EngineError
from .explain import identity_of, identity_given, read_file
from .failures import FINE, FOUND, NOT_READY, USAGE, Failure, from_core
from .lift import DEADLINE, Counts, Lifter
from .prompt import key_maker, tokenizer_at
from .prompt_list import Prompt, read_key_lists, read_texts, read_tokens
from .tier import open_image

FAILURES = 3  # of the engine, one after the other, and it is asked no more
STORING = 2.0  # seconds that it is given for what it computed last


@dataclass
class Row:
    """A prompt and what became of it. tokens: None if only its keys are known; counts: None if not
    even these are."""

    prompt: Prompt
    tokens: int | None
    counts: Counts | None = None
    stored: int | None = None
    answer: Answer | None = None
    error: str | None = None


def run(args: argparse.Namespace) -> int:
    import kvshm

    begun = time.monotonic()
    deadline = begun + args.timeout
    with open_view(args.arena, args.dir) as view:
        rows, block_tokens = _read(args, view)
        engine = _engine(args, deadline)
        paths = _paths(args, view, engine is not None)
        try:
            with _attach(view, paths) as arena, Progress(quiet=args.quiet) as progress:
                if paths:
                    _read_back(arena, view.name, progress, deadline)
                limit = args.limit
                limit = int(arena.blocks * limit) if isinstance(limit, float) else limit
                lifter = Lifter(arena, max(1, min(limit, arena.blocks)), deadline,
                                progress.advance)
                try:
                    _each(rows, lifter, engine, progress, deadline)
                    _stored(rows, arena, deadline)
                finally:
                    lifter.close()
                report = warmup_report.Report(view, rows, lifter, engine, paths, block_tokens,
                                              arena.block_bytes, time.monotonic() - begun)
        except kvshm.Error as e:
            raise from_core(e, view.name) from None
        report.show(args)
        if lifter.stopped == "timeout":
            raise Failure(NOT_READY, view.name, f"gave up after {args.timeout:g} s",
                          "--timeout SECONDS")
    return FINE if report.whole else FOUND


def _read(args: argparse.Namespace, view: View) -> tuple[list[Row], int | None]:
    """The prompts with their keys as far as they can be known, and the tokens of a block."""
    identity = identity_of(view)
    if identity is not None:
        identity = identity | {"epoch": int(view.superblock["space_epoch"])}
    if args.identity is not None:
        identity = identity_given(args.identity)
    block_tokens = None if identity is None else int(identity.get("block_tokens", 0)) or None
    if args.keys is not None:
        if args.engine is not None:
            raise Failure(USAGE, "", "--engine needs prompts, not keys", "--prompts or --tokens")
        return [Row(one, None) for one in read_key_lists(read_file(args.keys), args.keys)], \
            block_tokens
    if args.tokens is not None:
        prompts = read_tokens(read_file(args.tokens), args.tokens, args.salt)
    else:
        prompts = read_texts(read_file(args.prompts), args.prompts, args.salt)
    texts = any(one.text is not None for one in prompts)
    if texts and args.tokenizer is None and args.engine is None:
        raise Failure(USAGE, "", "--prompts is text", "--tokenizer DIR, or --engine URL")
    encode = tokenizer_at(args.tokenizer) if texts and args.tokenizer is not None else None
    make, rows = None, []
    for one in prompts:
        tokens = one.tokens
        if tokens is None and encode is not None:
            tokens = encode(str(one.text))
        if tokens is not None:
            make = make or key_maker(view, identity)
            one.keys = make(tokens, one.salt)
        rows.append(Row(one, None if tokens is None else len(tokens)))
    return rows, block_tokens


def _engine(args: argparse.Namespace, deadline: float) -> Engine | None:
    if args.engine is None:
        if args.model is not None or args.engine_key is not None:
            raise Failure(USAGE, "", "--model and --engine-key need --engine URL")
        return None
    key = None
    if args.engine_key is not None:
        key = read_file(args.engine_key).decode("ascii", "replace").strip()
        if not key.isprintable() or not key:
            raise Failure(USAGE, "", f"{args.engine_key}: no key of an engine")
    return Engine(args.engine, args.model, key, deadline)


def _paths(args: argparse.Namespace, view: View, engine: bool) -> list[str]:
    """Files of the tier: those given, or those that the arena's image names. None is made."""
    image = None if args.tier else open_image(view.name, view.folder)
    paths = [part for one in args.tier for part in one.split(":")]
    if image is not None:
        with image:
            paths = tiers.files(image).split(":")
    for path in paths:
        if not os.path.exists(path):
            raise Failure(USAGE, view.name, f"its tier {path}: there is no such file",
                          "--tier FILE, or, where it is gone for good, let engines make it anew")
    if not paths and not engine:
        raise Failure(USAGE, view.name, "it has no tier to lift from", "--tier FILE names one that "
                      "no process has opened since the host is up; --engine URL computes")
    return paths


@contextmanager
def _attach(view: View, paths: list[str]) -> Iterator[Any]:
    import kvshm

    options: dict[str, Any] = {}
    if paths:
        options = {"tier": paths, "tier_options": {"write": "off", "mover": "off",
                                                   "deadline": DEADLINE}}
    with kvshm.Arena.attach(view.name, dir=view.folder, helper=False, pin="off",
                            label="kvshm warmup", **options) as arena:
        yield arena


def _read_back(arena: Any, name: str, progress: Progress, deadline: float) -> None:
    """Until the tier has begun; after a reboot, until it knows again what it has."""
    from kvshm import TierState

    done: int | None = None
    while (tier := arena.tier).state in (TierState.NONE, TierState.REBUILDING):
        if tier.state == TierState.REBUILDING:
            if done is None:
                progress.stage("reading back", tier.rebuild_total)
                done = 0
            progress.advance(tier.rebuild_done - done)
            done = tier.rebuild_done
        if time.monotonic() > deadline:
            raise Failure(NOT_READY, name, "its tier is not ready, it may still be read back",
                          f"`kvshm stat {name}` says how far it is; --timeout SECONDS")
        time.sleep(0.005 if done is None else 0.05)


def _each(rows: list[Row], lifter: Lifter, engine: Engine | None, progress: Progress,
          deadline: float) -> None:
    progress.stage("warming up", sum(_size(row) for row in rows))
    failures = 0
    for row in rows:
        lifted = 0
        if row.prompt.keys is not None:
            row.counts = lifter.lift(row.prompt.keys)
            lifted = row.counts.found + row.counts.lifted
        if engine is not None and time.monotonic() > deadline:
            lifter.stop("timeout", "the time is over")
        if engine is not None and failures < FAILURES and lifter.stopped != "timeout":
            given = row.prompt.text if row.prompt.text is not None else row.prompt.tokens
            try:
                row.answer, failures = engine.send(given or "", row.prompt.salt), 0
            except EngineError as e:
                row.error, failures = str(e), failures + 1
        progress.advance(max(0, _size(row) - lifted))


def _size(row: Row) -> int:
    return max(1, 0 if row.prompt.keys is None else len(row.prompt.keys))


def _stored(rows: list[Row], arena: Any, deadline: float) -> None:
    """What of the missing is in memory now: the engine has computed it. It may store a little later
    than it answers."""
    from kvshm import Presence

    end = min(deadline, time.monotonic() + STORING)
    for row in rows:
        if row.answer is None or row.counts is None:
            continue
        had, row.stored = row.counts.found + row.counts.lifted, 0
        while row.counts.blocks:
            there = arena.presence(row.prompt.keys) & Presence.G2 != 0
            row.stored = max(0, int(there.sum()) - had)
            if there.all() or time.monotonic() >= end:
                break
            time.sleep(0.02)
