# SPDX-License-Identifier: Apache-2.0
"""Digests of weight files: of all their bytes, or of a sample that no other set of weights shares.

A sample is, for safetensors, the header (names, types, shapes, places), the file's size, and 4 KiB
from the middle of every tensor; training moves every number of a tensor, so a look at each tensor
tells two sets apart. Other files: 4 KiB of every MiB, at most 4096 pieces.
"""
from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator

SAMPLE = 4096
_MIB = 1 << 20
_HEADER_MAX = 100 * _MIB  # the format's own limit
_log = logging.getLogger("kvshm")


class Digest:
    """BLAKE2b over named pieces; every piece goes in with its length."""

    def __init__(self) -> None:
        self._state = hashlib.blake2b(digest_size=16, person=b"kvshm.v1.weights")

    def add(self, *pieces: str | bytes | int) -> None:
        for piece in pieces:
            data = piece if isinstance(piece, bytes) else str(piece).encode("utf-8", "replace")
            self._state.update(len(data).to_bytes(8, "little"))
            self._state.update(data)

    def add_stream(self, chunks: Iterable[bytes]) -> None:
        for chunk in chunks:
            self._state.update(chunk)

    def digest(self) -> bytes:
        return self._state.digest()

    def hexdigest(self) -> str:
        return self._state.hexdigest()


def add_file(to: Digest, path: str, *, full: bool = False) -> None:
    """The content of one file, sampled unless `full`. Its name is not part of it. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path}: not a file")
        to.add("full" if full else "sample", status.st_size)
        if full:
            to.add_stream(_all_bytes(fd, path, status.st_size))
        else:
            _add_sample(to, fd, path, status.st_size)
    finally:
        os.close(fd)


def _add_sample(to: Digest, fd: int, path: str, size: int) -> None:
    ranges: list[tuple[int, int]] | None = None
    if path.endswith(".safetensors"):
        header = _read_header(fd, size)
        ranges = None if header is None else _tensor_ranges(header)
        if header is not None and ranges is not None:
            to.add(header)
    if ranges is None:
        step = max(_MIB, -(-size // 4096))
        ranges = [(start, min(SAMPLE, size - start)) for start in range(0, size, step)]
    for start, length in ranges:  # all reads at once where the file is not in memory
        os.posix_fadvise(fd, start, length, os.POSIX_FADV_WILLNEED)
    for start, length in ranges:
        to.add(os.pread(fd, length, start))


def _read_header(fd: int, size: int) -> bytes | None:
    prefix = os.pread(fd, 8, 0)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > min(size - 8, _HEADER_MAX):
        return None
    return os.pread(fd, length, 8)


def _tensor_ranges(header: bytes) -> list[tuple[int, int]] | None:
    """Where to look: the middle of each tensor. None: no header of safetensors."""
    data = 8 + len(header)
    ranges = []
    try:
        for name, entry in json.loads(header).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                length = min(SAMPLE, end - begin)
                if begin < 0 or length < 0:
                    return None
                ranges.append((data + begin + (end - begin - length) // 2, length))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return sorted(ranges)


def _all_bytes(fd: int, path: str, size: int) -> Iterator[bytes]:
    """In pieces of 8 MiB; a line in the log every 5 seconds."""
    done, last = 0, time.monotonic()
    while chunk := os.pread(fd, 8 * _MIB, done):
        yield chunk
        done += len(chunk)
        if time.monotonic() - last > 5:
            last = time.monotonic()
            _log.info("fingerprint of the weights: %s: %d of %d MiB", path, done // _MIB,
                      size // _MIB)
