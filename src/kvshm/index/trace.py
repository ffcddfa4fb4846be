# SPDX-License-Identifier: Apache-2.0
"""Writing down what is looked up, for `kvshm replay`: when, how many tokens, and which blocks.

Blocks are told by short ids, 64 bits of a keyed hash of their key under a secret of the recording
(trace_file.py), so that a log holds no tokens, and those of two recordings cannot be joined.
"""
from __future__ import annotations

import atexit
import base64
import json
import logging
import os
import threading
import time
from collections import deque
from typing import Any, NamedTuple

from kvshm.errors import InvalidArgument
from kvshm.index.trace_file import Salt, TraceFile

LIMIT = 1 << 30  # bytes of a file
QUEUE = 1024  # requests that wait to be written
QUEUE_BYTES = 64 << 20  # of their keys
PAUSE = 0.05  # seconds between two writes: what comes meanwhile goes together


class _Entry(NamedTuple):
    t: float
    tenant: bytes
    tokens: int
    keys: Any


class TraceWriter:
    """Appends look-ups to a file, from a thread of its own.

    path: the file; another process's, of the same recording, may append to it at the same time, and
    PATH.key beside it holds what they share (the secret; give away the file, never the key).
    block_tokens: of each key. limit: bytes of the file, by all who write it; 0 = none.

    Raises OSError, or InvalidArgument where the file is none of ours or has another block size.
    Later errors end the recording with one warning to `logger`; so does the limit. A forked child
    records nothing.
    """

    def __init__(self, path: str | os.PathLike[str], block_tokens: int, *, limit: int = LIMIT,
                 logger: logging.Logger | None = None) -> None:
        if limit < 0:
            raise InvalidArgument(f"limit: expected bytes, or 0 for none, got {limit}")
        self.path, self._limit = os.fspath(path), limit
        self.recorded = 0  # requests in the file
        self.dropped = 0  # those that found no room in the queue, or an ended recording
        self._log = logger or logging.getLogger("kvshm")
        self._file = TraceFile(self.path, block_tokens)
        # What the file's clock says when ours says 0: a step of the wall clock moves nothing.
        self._zero = time.time() - self._file.salt.started - time.monotonic()
        self._queue: deque[_Entry] = deque()
        self._lock = threading.Lock()  # of those who add; the writing thread never takes it
        self._put = self._taken = 0  # bytes of keys: written by who adds, by the thread
        self._wake, self._closing, self._ended = threading.Event(), threading.Event(), False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="kvshm trace", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def add(self, keys: Any, tokens: int, tenant: str | bytes | None = None) -> bool:
        """A request of `tokens` tokens looks for `keys`, (n, 16) uint8, of its full blocks.

        tenant: whom it is for (a cache salt); in the file a number, by order of appearance. Takes
        microseconds and never waits: False, and counted in `dropped`, if the queue is full or the
        recording has ended. `keys` is read later, so it must stay as it is. Any thread.
        """
        if os.getpid() != self._pid:
            return False
        entry = _Entry(time.monotonic() + self._zero,
                       tenant.encode() if isinstance(tenant, str) else tenant or b"", tokens, keys)
        with self._lock:
            if (self._ended or self._closing.is_set() or len(self._queue) >= QUEUE
                    or self._put - self._taken + keys.nbytes > QUEUE_BYTES):
                self.dropped += 1
                return False
            self._put += keys.nbytes
            self._queue.append(entry)
        if not self._wake.is_set():
            self._wake.set()
        return True

    def close(self, timeout: float = 2.0) -> None:
        """Writes what waits, for `timeout` seconds at most, and says how much was recorded."""
        if self._closing.is_set() or os.getpid() != self._pid:
            return
        self._closing.set()
        atexit.unregister(self.close)
        self._wake.set()
        self._thread.join(timeout)
        lost = self.dropped + len(self._queue)
        self._log.log(logging.WARNING if lost else logging.INFO,
                      "kvshm: %s: %d requests recorded, %d dropped", self.path, self.recorded, lost)

    def _run(self) -> None:
        try:
            while self._queue or not self._closing.is_set():
                self._wake.wait()
                if not self._closing.wait(PAUSE):
                    self._wake.clear()  # before the look: who adds now wakes us once more
                self._write()
        except Exception as error:  # a full disk, the limit: not the engine's concern
            self._log.warning("kvshm: %s: %s; look-ups are recorded no more", self.path, error)
        finally:
            self._ended = True
            self._file.close()

    def _write(self) -> None:
        """All that waits, in few writes of whole lines."""
        while self._queue:
            lines: list[bytes] = []
            while self._queue and len(lines) < 64:
                entry = self._queue.popleft()
                self._taken += entry.keys.nbytes
                lines.append(_line(entry, self._file.salt))
            data = b"".join(lines)
            try:
                if self._limit and self._file.size() + len(data) > self._limit:
                    raise OSError(f"is at its limit of {self._limit} bytes")
                self._file.append(data)
            except OSError:
                with self._lock:
                    self.dropped += len(lines)
                raise
            self.recorded += len(lines)


def _line(entry: _Entry, salt: Salt) -> bytes:
    ids = base64.b64encode(salt.short_ids(entry.keys).tobytes()).decode()
    return json.dumps({"t": round(max(0.0, entry.t), 6), "tenant": salt.tenant(entry.tenant),
                       "tokens": int(entry.tokens), "ids": ids},
                      separators=(",", ":")).encode() + b"\n"
