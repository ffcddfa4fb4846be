# SPDX-License-Identifier: Apache-2.0
"""`kvshm record`: logs of look-ups, merged into one trace that tells nothing but what was shared.

An arena itself keeps no record of who looked what up, so the logs are those that connectors write.
"""
from __future__ import annotations

import argparse
import base64
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from . import text
from .failures import FINE, NO_ARENA, USAGE, Failure

if TYPE_CHECKING:
    from kvshm.index import LookupLog


class _Request(NamedTuple):
    t: float
    file: int
    tenant: int
    tokens: int
    first: int  # in the ids of all
    n: int


def run(args: argparse.Namespace) -> int:
    import numpy as np

    logs = [_open(name) for name in args.logs]
    tokens = {log.block_tokens for log in logs}
    if len(tokens) > 1:
        raise Failure(USAGE, "", "logs of " + " and ".join(map(str, sorted(tokens)))
                      + " tokens a block", "make a trace of each kind")
    requests, ids = _collect(logs)
    # Stable: requests of one time stay in the order of the files.
    requests.sort(key=lambda one: one.t)
    begin = requests[0].t if requests else 0.0
    if args.seconds is not None:
        requests = [one for one in requests if one.t - begin < args.seconds]
    whole = _Numbers(requests, ids, np)
    with _output(args.out) as file:
        for line in _lines(args.format, logs[0].block_tokens, requests, whole, begin):
            file.write(line + "\n")
    skipped = sum(log.skipped for log in logs)
    _tell(args, requests, whole, begin, skipped)
    return FINE


def _open(name: str) -> LookupLog:
    import kvshm
    from kvshm.index import LookupLog

    try:
        return LookupLog(name)
    except FileNotFoundError:
        raise Failure(NO_ARENA, name, "no such file", "an engine writes one with the option trace "
                      "(docs/vllm.md); an arena keeps no record of look-ups itself") from None
    except OSError as error:
        raise Failure(USAGE, name, str(error.strerror)) from None
    except kvshm.InvalidArgument as error:
        raise Failure(USAGE, "", str(error)) from None


def _collect(logs: Sequence[LookupLog]) -> tuple[list[_Request], Any]:
    """Every request, its time by one clock, and all ids as (number of the secret, id)."""
    import numpy as np

    known = [log.started for log in logs if log.started]
    zero = min(known, default=0.0)
    # Files of one secret have ids and tenants in common, others nothing.
    secrets = {(log.salt or log.path): None for log in logs}
    number = {salt: at for at, salt in enumerate(secrets)}
    requests, parts, count = [], [], 0
    for log in logs:
        file = number[log.salt or log.path]
        ahead = log.started - zero if log.started else 0.0
        for one in log:
            requests.append(_Request(one.t + ahead, file, one.tenant, one.tokens, count,
                                     len(one.ids)))
            parts.append(one.ids)
            count += len(one.ids)
    return requests, np.concatenate(parts) if parts else np.empty(0, np.uint64)


class _Numbers:
    """Blocks and tenants numbered from 0 in the order in which they first appear."""

    def __init__(self, requests: Sequence[_Request], ids: Any, np: Any) -> None:
        wanted = [ids[one.first:one.first + one.n] for one in requests]
        flat = np.concatenate(wanted) if wanted else np.empty(0, np.uint64)
        files = np.repeat(np.array([one.file for one in requests], np.uint32),
                          [one.n for one in requests])
        self._blocks, firsts, self.blocks = np.empty(len(flat), np.int64), [], 0
        for file in sorted({one.file for one in requests}):
            places = np.flatnonzero(files == file)
            _, first, inverse = np.unique(flat[places], return_index=True, return_inverse=True)
            self._blocks[places] = inverse.reshape(-1) + self.blocks
            firsts.append(places[first])
            self.blocks += len(first)
        rank = np.empty(self.blocks, np.int64)
        rank[np.argsort(np.concatenate(firsts) if firsts else [])] = np.arange(self.blocks)
        self._blocks = rank[self._blocks]
        self._ends = np.cumsum([one.n for one in requests], dtype=np.int64)
        self._tenants: dict[tuple[int, int], int] = {}
        self.tenants = [0 if not one.tenant else self._tenants.setdefault(
            (one.file, one.tenant), len(self._tenants) + 1) for one in requests]

    def of(self, at: int, n: int) -> Any:
        return self._blocks[self._ends[at] - n:self._ends[at]]


def _lines(form: str, block_tokens: int, requests: Sequence[_Request], numbers: _Numbers,
           begin: float) -> Iterator[str]:
    if form == "lookups":
        yield json.dumps({"format": "kvshm-lookups", "version": 1, "block_tokens": block_tokens,
                          "salted": True})
    for at, one in enumerate(requests):
        ids = numbers.of(at, one.n)
        if form == "lookups":
            made: dict[str, Any] = {
                "t": round(one.t - begin, 6), "tenant": numbers.tenants[at], "tokens": one.tokens,
                "ids": base64.b64encode(ids.astype("<u8").tobytes()).decode()}
        else:
            made = {"timestamp": round((one.t - begin) * 1000), "input_length": one.tokens,
                    "output_length": 0, "hash_ids": ids.tolist()}
        yield json.dumps(made, separators=(",", ":"))


@contextmanager
def _output(path: str | None) -> Iterator[TextIO]:
    """Standard output, or a file that is whole or not there."""
    if path is None:
        yield sys.stdout
        return
    part = f"{path}.part{os.getpid()}"
    try:
        with open(part, "w", encoding="ascii") as file:
            yield file
        os.replace(part, path)
    except OSError as error:
        raise Failure(USAGE, path, str(error.strerror)) from None
    finally:
        if os.path.exists(part):
            os.unlink(part)


def _tell(args: argparse.Namespace, requests: Sequence[_Request], numbers: _Numbers, begin: float,
          skipped: int) -> None:
    facts: dict[str, Any] = {
        "requests": len(requests), "blocks_asked": sum(one.n for one in requests),
        "blocks_different": numbers.blocks, "tenants": len(set(numbers.tenants)),
        "seconds": round(requests[-1].t - begin, 3) if requests else 0.0,
        "lines_skipped": skipped}
    if args.json:
        print(json.dumps(text.document("record", out=args.out, **facts)), file=sys.stderr)
    elif not args.quiet:
        print(f"kvshm: {facts['requests']} requests in {facts['seconds']:g} s, "
              f"{facts['blocks_asked']} blocks asked for, {numbers.blocks} different, "
              f"{text.many(facts['tenants'], 'tenant')}"
              + (f"; {skipped} lines were not whole and are left out" if skipped else ""),
              file=sys.stderr)
