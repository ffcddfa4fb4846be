# SPDX-License-Identifier: Apache-2.0
"""Reading a log of look-ups, as TraceWriter writes it."""
from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvshm.errors import InvalidArgument
from kvshm.index.trace_file import FORMAT, VERSION


class Lookup(NamedTuple):
    """t: seconds since the recording began. tenant: 0 = none. ids: of the full blocks, in order."""

    t: float
    tenant: int
    tokens: int
    ids: npt.NDArray[np.uint64]


class LookupLog:
    """The requests of one file, in the file's order (with several engines nearly that of time).

    Iterate; can be done again. `skipped` counts the lines of the last round that were not whole (a
    writer was killed, the disk was full). Raises OSError, and InvalidArgument for another format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.skipped = os.fspath(path), 0
        with open(self.path, "rb") as file:
            head = _parsed(file.readline(4096))
        if head is None or head.get("format") != FORMAT:
            raise InvalidArgument(f"{self.path}: is no log of look-ups ({FORMAT})")
        if head.get("version") != VERSION:
            raise InvalidArgument(f"{self.path}: is of version {head.get('version')!r}, this kvshm "
                                  f"reads {VERSION}")
        tokens = head.get("block_tokens")
        if not isinstance(tokens, int) or tokens < 1:
            raise InvalidArgument(f"{self.path}: block_tokens: {tokens!r}")
        self.block_tokens = tokens
        self.started = float(head.get("started", 0.0))  # seconds since the epoch; 0 = not told
        self.salt = str(head.get("salt", ""))  # files of one secret have one name of it here

    def __iter__(self) -> Iterator[Lookup]:
        self.skipped = 0
        with open(self.path, "rb") as file:
            next(file)
            for line in file:
                found = parse_lookup(line)
                if found is not None:
                    yield found
                elif line.strip():
                    self.skipped += 1


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def parse_lookup(line: bytes) -> Lookup | None:
    """One request of such a log; None: the line is no whole one."""
    found = _parsed(line)
    if found is None:
        return None
    try:
        raw = base64.b64decode(found["ids"], validate=True)
        return Lookup(float(found["t"]), int(found["tenant"]), int(found["tokens"]),
                      np.frombuffer(raw, "<u8"))
    except (KeyError, TypeError, ValueError, binascii.Error):
        return None
