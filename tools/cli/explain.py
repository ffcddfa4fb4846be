# SPDX-License-Identifier: Apache-2.0
"""`kvshm explain`: which key of a prompt is the first that is missing, and why."""
from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from typing import Any

import numpy as np

from ..inspector import explain
from ..inspector.view import Array, View
from . import text
from .arenas import open_view
from .failures import FINE, FOUND, USAGE, Failure
from .prompt import prompt_keys, tokens_of


def run(args: argparse.Namespace) -> int:
    with open_view(args.arena, args.dir) as view:
        own, epoch = identity_of(view), int(view.superblock["space_epoch"])
        given = None if args.identity is None else identity_given(args.identity)
        if args.keys is not None:
            keys = read_keys(read_file(args.keys), args.keys)
        else:
            keys = prompt_keys(view, _prompt(args), args.salt,
                               given or (own and own | {"epoch": epoch}))
        finding = None if given is None else explain.compare(own, given, epoch)
        if finding is None:
            finding = explain.explain(view, keys)
        else:
            finding.keys, finding.missing = len(keys), 0 if len(keys) else None
            finding.key = bytes(keys[0]).hex() if len(keys) else None
        if args.json:
            text.print_json(text.document("explain", name=view.name, path=view.path,
                                          **_members(finding)))
        elif not args.quiet:
            print(_render(view, finding))
    return FINE if finding.reason == "present" else FOUND


def _members(finding: explain.Finding) -> dict[str, Any]:
    members = dataclasses.asdict(finding)
    when = members["when"]
    members["when"] = None if when is None else text.moment(when)
    members["seconds_ago"] = None if when is None else max(0, int(time.time()) - when)
    return members


def _render(view: View, finding: explain.Finding) -> str:
    shown = _members(finding)
    del shown["fields"]
    ago = shown.pop("seconds_ago")
    if ago is not None:
        shown["when"] = f"{shown['when']}, {text.age(ago)} ago"
    shown["pids"] = ", ".join(map(str, finding.pids)) or None
    shown["why"] = text.clean(finding.why)
    return text.pairs(view.name, {k: "-" if v is None else v for k, v in shown.items()})


def identity_of(view: View) -> dict[str, Any] | None:
    """The arena's own; None of a raw one."""
    if view.superblock["raw"]:
        return None
    try:
        found: dict[str, Any] = json.loads(bytes(view.superblock["identity"]))
    except ValueError:
        raise Failure(USAGE, view.name, "its identity cannot be read", "`kvshm verify`") from None
    return found


def read_keys(data: bytes, name: str) -> Array:
    """(n, 16) from 32 hexadecimal digits a key: in lines, as a JSON list, or end to end."""
    digits = re.sub(rb"[\s,\[\]\"']", b"", data).decode("ascii", "replace")
    if not re.fullmatch(r"([0-9a-fA-F]{32})+", digits):
        raise Failure(USAGE, "", f"{name}: no keys", "wanted 32 hexadecimal digits a key")
    return np.frombuffer(bytes.fromhex(digits), np.uint8).reshape(-1, 16)


def _prompt(args: argparse.Namespace) -> list[int]:
    return tokens_of(read_file(args.prompt), args.prompt, args.tokenizer)


def identity_given(given: str) -> dict[str, Any]:
    raw = read_file(given[1:]) if given.startswith("@") else given.encode()
    try:
        found = json.loads(raw)
    except ValueError as e:
        raise Failure(USAGE, "", f"--identity: {e}", "wanted the JSON that Identity.text is, or "
                      "@FILE") from None
    unknown = set(found) - {*explain.FIELDS, "epoch"} if isinstance(found, dict) else {"no object"}
    if unknown:
        raise Failure(USAGE, "", f"--identity: {', '.join(sorted(unknown))}",
                      "wanted an object with " + ", ".join((*explain.FIELDS, "epoch")))
    return dict(found)


def read_file(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        with open(name, "rb") as file:
            return file.read()
    except OSError as e:
        raise Failure(USAGE, "", f"{name}: {e.strerror}") from None
