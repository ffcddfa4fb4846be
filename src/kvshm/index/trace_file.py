# SPDX-License-Identifier: Apache-2.0
"""The two files of a recording: FILE, that everybody may have, and FILE.key, that stays at home.

FILE begins with one line, {"format": "kvshm-lookups", ...}, and has one line a request. Engines of
a host append to one file, each a few whole lines in one write(2), O_APPEND. So that their ids and
their tenants' numbers mean the same, they share a secret: FILE.key, mode 0600, has it in its first
line, and in the next ones a keyed hash of each tenant, whose number is its place. It is read and
appended to under flock(2), when a file is opened and when a new tenant comes.
"""
from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from kvshm.errors import InvalidArgument
from kvshm.index.identity import Identity

FORMAT, VERSION = "kvshm-lookups", 1
LOCK_SECONDS = 1.0  # who holds the lock reads a few lines under it
MOST_TENANTS = 1 << 20  # all others share one number


class Salt:
    """The secret of a recording and the numbers of its tenants; lives as long as FILE is open."""

    def __init__(self, fd: int) -> None:
        """fd: of FILE.key, under the lock; an empty one is begun."""
        self._fd, self._read = fd, 0
        self._tenants: dict[bytes, int] = {}
        self.fresh = os.fstat(fd).st_size == 0
        if self.fresh:
            head = {"format": FORMAT + "-key", "salt": secrets.token_hex(32),
                    "started": round(time.time(), 3)}
            _write(fd, json.dumps(head).encode() + b"\n")
        self._head = os.pread(fd, 4096, 0).split(b"\n")[0]
        try:
            head = json.loads(self._head)
            self._secret, self.started = bytes.fromhex(head["salt"]), float(head["started"])
        except (ValueError, KeyError, TypeError):
            raise InvalidArgument("its .key file is none of a recording: remove both") from None
        self._read = len(self._head) + 1
        # A SipHash under a key that this text makes (docs/keys.md): one native call a request.
        self._hash = Identity(model=FORMAT, weights=self._secret.hex(), block_tokens=1)
        self.name = hashlib.blake2b(b"name", key=self._secret, digest_size=8).hexdigest()

    def short_ids(self, keys: Any) -> npt.NDArray[np.uint64]:
        return np.ascontiguousarray(self._hash.keys_from_hashes(keys)[:, :8]).view("<u8")[:, 0]

    def tenant(self, salt: bytes) -> int:
        """0 for none, else from 1 on. One that is new here costs system calls."""
        if not salt:
            return 0
        name = hashlib.blake2b(salt, key=self._secret, digest_size=16).hexdigest().encode()
        number = self._tenants.get(name)
        if number is None:
            if len(self._tenants) >= MOST_TENANTS:
                return MOST_TENANTS + 1
            with _Locked(self._fd):
                self._catch_up()
                if name not in self._tenants:
                    _write(self._fd, name + b"\n")
                    self._catch_up()
            number = self._tenants[name]
        return number

    def _catch_up(self) -> None:
        """Tenants that others have entered. A line that is torn counts for nobody."""
        if os.pread(self._fd, len(self._head), 0) != self._head:
            raise OSError("was removed, and begun anew by another process")
        while data := os.pread(self._fd, 1 << 20, self._read):
            whole = data[:data.rfind(b"\n") + 1]
            if not whole:
                _write(self._fd, b"\n")
                continue
            for name in whole.splitlines():
                self._tenants.setdefault(name, len(self._tenants) + 1)
            self._read += len(whole)

    def close(self) -> None:
        os.close(self._fd)


class TraceFile:
    """FILE, to be appended to. Raises OSError; InvalidArgument for what is none of ours."""

    def __init__(self, path: str, block_tokens: int) -> None:
        key = os.open(path + ".key", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with _Locked(key):
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                try:
                    if not os.fstat(fd).st_size:
                        os.ftruncate(key, 0)  # a new file, a new secret
                    self.salt = Salt(key)
                    self._begin(fd, path, block_tokens)
                except BaseException:
                    os.close(fd)
                    raise
        except BaseException:
            os.close(key)
            raise
        self._fd = fd

    def _begin(self, fd: int, path: str, block_tokens: int) -> None:
        head = {"format": FORMAT, "version": VERSION, "block_tokens": block_tokens, "salted": True,
                "started": self.salt.started, "salt": self.salt.name}
        size = os.fstat(fd).st_size
        if not size:
            _write(fd, json.dumps(head).encode() + b"\n")
            return
        try:
            found = json.loads(os.pread(fd, 4096, 0).split(b"\n")[0])
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise InvalidArgument(f"{path}: is there and no log of look-ups: name another file")
        for name in ("version", "block_tokens", "salt"):
            if found.get(name) != head[name]:
                raise InvalidArgument(f"{path}: is of {name} {found.get(name)!r}, this one is of "
                                      f"{head[name]!r}: name another file")
        if os.pread(fd, 1, size - 1) != b"\n":  # who wrote it last was killed
            _write(fd, b"\n")

    def size(self) -> int:
        """Bytes, with those of the other writers."""
        return os.fstat(self._fd).st_size

    def append(self, lines: bytes) -> None:
        _write(self._fd, lines)

    def close(self) -> None:
        os.close(self._fd)
        self.salt.close()


class _Locked:
    """flock(2) for a moment, or TimeoutError, which is an OSError."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> None:
        end = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError("its .key file stays locked by another process") from None
                time.sleep(0.005)

    def __exit__(self, *error: object) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)


def _write(fd: int, data: bytes) -> None:
    """In one piece, as long as there is room on the disk."""
    while data:
        data = data[os.write(fd, data):]
