# SPDX-License-Identifier: Apache-2.0
"""Reads a trace. Three formats, each one JSON object a line, a request each, in order of arrival:

- Mooncake's: timestamp (ms), input_length (tokens), hash_ids;
- runs: the same with runs, [[first, n], ...], in place of hash_ids;
- look-up logs of kvshm's connectors: a header {"format": "kvshm-lookups", "version": 1,
  "block_tokens": N}, then t (seconds), tenant, tokens, and ids: base64 of uint64, little-endian.
"""
from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from kvshm.index.lookups import parse_lookup
from kvshm.index.trace_file import FORMAT, VERSION

from .expanding import expand, join
from .failures import ReplayError
from .finding import find
from .opening import lines_of
from .trace import Ids, Trace, Whole


class _Columns:
    """What the lines say, column by column."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.seconds: list[float] = []
        self.sessions: list[Any] = []
        self.tenants: list[int] = []
        self.listed: list[Ids] = []  # of requests with ids; those with runs:
        self.firsts: list[int] = []
        self.counts: list[int] = []
        self.runs: list[int] = []
        self.header: dict[str, Any] | None = None
        self.skipped = 0  # lines of a look-up log that are not whole

    def take(self, text: bytes) -> None:
        if self.header is None or b'"format"' in text[:64]:
            line = json.loads(text)
            if "format" in line:
                self._take_header(line)
            else:
                self._take_request(line)
            return
        found = parse_lookup(text)
        if found is None:  # whoever wrote it was killed
            self.skipped += 1
            return
        self.tokens.append(found.tokens)
        self.seconds.append(found.t)
        self.tenants.append(found.tenant)
        self.listed.append(found.ids)

    def _take_request(self, line: dict[str, Any]) -> None:
        if "runs" in line:
            firsts, counts = zip(*line["runs"], strict=True) if line["runs"] else ((), ())
            self.runs.append(len(firsts))
            self.firsts.extend(firsts)
            self.counts.extend(counts)
        else:
            self.listed.append(np.array(line["hash_ids"], np.uint64))
        self.tokens.append(line["input_length"])
        self.seconds.append(line["timestamp"] / 1000)
        if "session" in line:
            self.sessions.append(line["session"])

    def _take_header(self, line: dict[str, Any]) -> None:
        if line["format"] != FORMAT or line.get("version") != VERSION:
            raise ReplayError(f"wanted {FORMAT} of version {VERSION}, found {line['format']!r} "
                              f"of version {line.get('version')!r}")
        before = self.header
        if before is None and self.tokens:
            raise ReplayError("a header in the midst of the requests")
        # Several logs, one after the other.
        if before is not None and before["block_tokens"] != line["block_tokens"]:
            raise ReplayError(f"blocks of {line['block_tokens']} tokens after some of "
                              f"{before['block_tokens']}", "one log for each block size")
        self.header = line

    def whole(self, values: list[Any]) -> Whole | None:
        """None where not every request has one. Names are numbered as they appear."""
        if not values or len(values) != len(self.tokens):
            return None
        if not all(isinstance(value, int) for value in values):
            number = {value: i for i, value in enumerate(dict.fromkeys(values))}
            values = [number[value] for value in values]
        return np.array(values, np.int64)

    def blocks(self, every: int) -> tuple[Ids, Whole]:
        if self.listed:
            return join(self.listed, every)
        counts = np.array(self.counts, np.int64)
        if counts.min(initial=0) < 0:
            raise ValueError("a run of less than nothing")
        return expand(np.array(self.firsts, np.uint64), counts, np.array(self.runs, np.int64),
                      every)


def read_trace(given: str, *, block_tokens: int = 0, every: int = 1, tokens_per_block: int = 0,
               requests: int = 0) -> Trace:
    """The trace at a path, of a name in KVSHM_TRACES, or on stdin (`-`).

    block_tokens: of the trace's blocks, where it does not say so; 0: found from lengths and
    tokens. every: join so many of its blocks to one, or as many as make tokens_per_block.
    requests: only the first so many.
    """
    path = find(given)
    columns = _Columns()
    _take_lines(columns, lines_of(path), path, requests)
    if not columns.tokens:
        raise ReplayError(f"{path}: no requests in it")
    if columns.runs and columns.listed:
        raise ReplayError(f"{path}: hash_ids and runs in one trace")
    size = _block_tokens(columns, block_tokens, path)
    every = _every(size, every, tokens_per_block)
    try:
        ids, bounds = columns.blocks(every)
        seconds = np.array(columns.seconds, np.float64)
        return Trace(name=given, block_tokens=size * every, ids=ids, bounds=bounds,
                     tokens=np.array(columns.tokens, np.int64), seconds=seconds - seconds[0],
                     sessions=columns.whole(columns.sessions),
                     tenants=columns.whole(columns.tenants), skipped=columns.skipped)
    except (ValueError, TypeError, OverflowError) as e:
        raise ReplayError(f"{path}: numbers of its requests: {e}") from None


def _take_lines(columns: _Columns, lines: Iterable[bytes], path: str, requests: int) -> None:
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            columns.take(text)
        except ReplayError as e:
            raise ReplayError(f"{path}: line {number}: {e}", e.remedy) from None
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as e:
            what = f"{e} is missing" if isinstance(e, KeyError) else str(e)
            raise ReplayError(f"{path}: line {number}: {what}", "wanted Mooncake's format, runs, "
                              "or a look-up log of a connector (docs/replay.md)") from None
        if requests and len(columns.tokens) >= requests:
            return


def _block_tokens(columns: _Columns, given: int, path: str) -> int:
    if columns.header is not None:
        return int(columns.header["block_tokens"])
    if given:
        return given
    blocks = sum(map(len, columns.listed)) + sum(columns.counts)
    tokens = sum(columns.tokens)
    if not blocks or tokens < blocks:
        raise ReplayError(f"{path}: {tokens} tokens in {blocks} blocks do not say how large a "
                          "block is", "give --block-tokens")
    # The last block of a request may be partly filled, so the mean is a little off.
    return 1 << round(math.log2(tokens / blocks))


def _every(size: int, every: int, tokens_per_block: int) -> int:
    if not tokens_per_block:
        return every
    if tokens_per_block % size:
        raise ReplayError(f"--tokens-per-block {tokens_per_block}: the trace's blocks have {size}",
                          f"wanted a multiple of {size}")
    return tokens_per_block // size
