# SPDX-License-Identifier: Apache-2.0
"""The lines of a trace: plain, gzip or zstd, told apart by their first bytes; `-` is stdin."""
from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator
from typing import IO, cast

from .failures import ReplayError

ZSTD, GZIP = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"


def lines_of(path: str) -> Iterator[bytes]:
    """Each line with its newline."""
    try:
        if path == "-":
            yield from _unpacked(cast(io.BufferedReader, sys.stdin.buffer), "standard input")
            return
        with open(path, "rb") as file:
            yield from _unpacked(file, path)
    except OSError as e:
        raise ReplayError(f"{path}: {e.strerror or e}") from None
    except EOFError:
        raise ReplayError(f"{path}: the gzip data ends too early") from None


def _unpacked(file: io.BufferedReader, name: str) -> Iterator[bytes]:
    start = file.peek(4)[:4]
    if start == ZSTD:
        yield from _zstd(file, name)
    elif start[:2] == GZIP:
        with gzip.open(file) as unpacked:
            yield from unpacked
    else:
        yield from file


def _zstd(file: IO[bytes], name: str) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise ReplayError(f"{name} is packed with zstd, and the package zstandard is not there",
                          "pip install 'kvshm[tools]', or pipe it: zstd -dc FILE | kvshm replay -"
                          ) from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as unpacked:
            yield from io.BufferedReader(cast(io.RawIOBase, unpacked), 1 << 20)
    except zstandard.ZstdError as e:
        raise ReplayError(f"{name}: {e}") from None
