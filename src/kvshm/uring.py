# SPDX-License-Identifier: Apache-2.0
"""io_uring from Python, by way of liburing: what the host allows, and a reader of its own.

`probe()` says which io_uring facilities this kernel, container and user have. `Ring` reads
files, O_DIRECT too, with a real ring that shares nothing with the arena's own engines.
"""

from __future__ import annotations

import errno
import importlib
import mmap
import os
import time
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvshm._uring_probe import UringProbe

SLICE = 0.1  # seconds in the kernel at a time, so that signal handlers run between
MAX_READ = 1 << 30  # bytes of one request; the kernel takes a little under 2 GiB

# Rings that could not be drained, with the buffers the kernel may still write to. They stay
# here for the life of the process: memory that is lost is better than memory overwritten.
_abandoned: list[tuple[Any, ...]] = []

# A child that kept the descriptor would keep the ring, and what guards it, alive.
_rings: weakref.WeakSet[Ring] = weakref.WeakSet()


def _close_in_child() -> None:
    for ring in list(_rings):
        ring.close()


os.register_at_fork(after_in_child=_close_in_child)


def load() -> Any:
    """The compiled binding; ImportError says what to install when it is not there."""
    try:
        return importlib.import_module("kvshm._uring")
    except ImportError as e:
        if e.name == "_cffi_backend":
            raise ImportError(
                "kvshm.uring needs the cffi package: pip install 'kvshm[tools]'", name=e.name
            ) from e
        raise ImportError(
            "this kvshm was built without io_uring: install liburing-dev and build with "
            "KVSHM_IO_URING=ON", name="kvshm._uring"
        ) from e


def probe(buffer_bytes: int = 64 << 20) -> UringProbe:
    """What io_uring can do here. Registers buffers of up to `buffer_bytes`, for a moment."""
    from kvshm._uring_probe import probe_uring

    return probe_uring(buffer_bytes)


def aligned_buffer(size: int) -> mmap.mmap:
    """Writable private memory that begins on a page, as O_DIRECT wants it."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _check(rc: int, what: str) -> int:
    if rc < 0:
        raise OSError(-rc, f"{what}: {os.strerror(-rc)}")
    return rc


class Ring:
    """One io_uring. For the thread that made it; a fork child must not use it.

    A buffer given to it stays exported until its read has completed, whatever happens.
    """

    def __init__(self, entries: int = 64, *, plain: bool = False) -> None:
        binding = load()
        self._ffi, self._lib = binding.ffi, binding.lib
        self._ring = self._ffi.new("struct io_uring *")
        self._reads: dict[int, Any] = {}  # token -> the buffer's export, while in flight
        self._fixed: Any = None  # exports of the registered buffers
        self._open = False
        self._pid = os.getpid()
        lib = self._lib
        wanted = lib.IORING_SETUP_SINGLE_ISSUER | lib.IORING_SETUP_DEFER_TASKRUN
        params = self._setup(entries, 0 if plain else wanted)
        if params is None:  # before 6.1: no such flags
            params = self._setup(entries, 0)
        self.flags: int = params.flags
        self.features: int = params.features
        self.entries: int = params.sq_entries
        self._open = True
        _rings.add(self)
        # A child that kept the ring's pages would keep the ring, and its locks, alive.
        _check(lib.io_uring_ring_dontfork(self._ring), "ring memory: madvise")

    def _setup(self, entries: int, flags: int) -> Any:
        params = self._ffi.new("struct io_uring_params *")
        params.flags = flags | self._lib.IORING_SETUP_CLAMP
        rc = self._lib.io_uring_queue_init_params(entries, self._ring, params)
        if rc == -errno.EINVAL and flags:
            return None
        _check(rc, "io_uring_setup")
        return params

    def fileno(self) -> int:
        """Its descriptor, for `Arena.guard_ring`; not to be closed."""
        self._usable()
        return int(self._ring.ring_fd)

    # -- registration ----------------------------------------------------------------

    def register_files(self, descriptors: Sequence[int]) -> None:
        """The kernel keeps these open files until the ring is gone; yours may be closed."""
        self._usable()
        array = self._ffi.new("int[]", list(descriptors))
        rc = self._lib.io_uring_register_files(self._ring, array, len(descriptors))
        _check(rc, "register files")

    def register_buffers(self, buffers: Sequence[Any]) -> None:
        """Pins the buffers; RLIMIT_MEMLOCK counts them unless CAP_IPC_LOCK is held."""
        self._usable()
        exports = [self._export(b) for b in buffers]
        iovecs = self._ffi.new("struct iovec[]", len(exports))
        for i, export in enumerate(exports):
            iovecs[i].iov_base, iovecs[i].iov_len = export, len(export)
        rc = self._lib.io_uring_register_buffers(self._ring, iovecs, len(exports))
        _check(rc, "register buffers")
        self._fixed = exports

    def unregister_buffers(self) -> None:
        self._usable()
        _check(self._lib.io_uring_unregister_buffers(self._ring), "unregister buffers")
        self._fixed = None

    # -- requests ----------------------------------------------------------------------

    def start_read(self, fd: int, buffer: Any, offset: int, token: int) -> None:
        """Submits one read; `wait` gives back the token and what came of it."""
        self._usable()
        if token in self._reads:
            raise ValueError(f"token {token} is in flight")
        export = self._export(buffer)
        sqe = self._sqe()
        count = min(len(export), MAX_READ)
        self._lib.io_uring_prep_read(sqe, fd, export, count, offset)
        self._submit(sqe, token, export)

    def start_nop(self, token: int) -> None:
        self._usable()
        sqe = self._sqe()
        self._lib.io_uring_prep_nop(sqe)
        self._submit(sqe, token, None)

    def wait(self, timeout: float) -> tuple[int, int]:
        """The next completion: (token, bytes or -errno). TimeoutError past the limit."""
        self._usable()
        deadline = time.monotonic() + timeout
        out = self._ffi.new("struct io_uring_cqe **")
        spec = self._ffi.new("struct __kernel_timespec *")
        while True:
            left = max(0.0, min(SLICE, deadline - time.monotonic()))
            spec.tv_sec, spec.tv_nsec = 0, int(left * 1e9)
            rc = self._lib.io_uring_wait_cqe_timeout(self._ring, out, spec)
            if rc == 0:
                token = int(self._lib.io_uring_cqe_get_data64(out[0]))
                result = int(out[0].res)
                self._lib.io_uring_cqe_seen(self._ring, out[0])
                self._reads.pop(token, None)
                return token, result
            if rc not in (-errno.ETIME, -errno.EINTR, -errno.EAGAIN):
                _check(rc, "io_uring_enter")
            if time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"no completion within {timeout:g} s")

    def read(self, fd: int, buffer: Any, offset: int = 0, *, timeout: float = 10.0) -> int:
        """Fills the buffer from the file; fewer bytes only at the file's end."""
        return self.read_many(fd, [(offset, buffer)], timeout=timeout)[0]

    def read_many(
        self, fd: int, places: Iterable[tuple[int, Any]], *, depth: int = 8, timeout: float = 10.0
    ) -> list[int]:
        """Reads (offset, buffer) pairs, `depth` at a time; the bytes of each, in order."""
        if self._reads:
            raise RuntimeError("reads of another call are in flight")
        jobs = [(offset, memoryview(buffer).cast("B")) for offset, buffer in places]
        done = [0] * len(jobs)
        todo = deque(i for i, (_, view) in enumerate(jobs) if len(view))
        depth = max(1, min(depth, self.entries))
        deadline = time.monotonic() + timeout
        failed: OSError | None = None
        try:
            while todo or self._reads:
                while todo and len(self._reads) < depth and failed is None:
                    i = todo.popleft()
                    offset, view = jobs[i]
                    self.start_read(fd, view[done[i]:], offset + done[i], i)
                if not self._reads:
                    break
                i, result = self.wait(max(0.0, deadline - time.monotonic()))
                if result < 0:
                    what = f"read at {jobs[i][0]}: {os.strerror(-result)}"
                    failed = failed or OSError(-result, what)
                    continue
                done[i] += result
                # Short and at a page's end: there may be more. Else it is the file's end.
                if result and done[i] < len(jobs[i][1]) and done[i] % mmap.PAGESIZE == 0:
                    todo.appendleft(i)
        finally:  # a traceback must not keep the caller's buffers exported
            for _, view in jobs:
                view.release()
        if failed is not None:
            raise failed
        return done

    # -- end of life -----------------------------------------------------------------

    def close(self, timeout: float = 10.0) -> None:
        """Waits for what is in flight, then gives the ring up. Harmless when closed.

        A ring that does not drain in time is abandoned with its buffers: TimeoutError.
        """
        if not self._open:
            return
        if os.getpid() != self._pid:  # the pages are not here; only the descriptor is
            self._open = False
            os.close(self._ring.ring_fd)
            return
        deadline = time.monotonic() + timeout
        try:
            while self._reads:
                self.wait(max(0.0, deadline - time.monotonic()))
        except OSError:
            self._abandon()
            raise
        self._open = False
        self._lib.io_uring_queue_exit(self._ring)
        self._fixed = None

    def _abandon(self) -> None:
        self._open = False
        _abandoned.append((self._ring, self._reads, self._fixed))

    def _export(self, buffer: Any) -> Any:
        return self._ffi.from_buffer("char[]", buffer, require_writable=True)

    def _sqe(self) -> Any:
        sqe = self._lib.io_uring_get_sqe(self._ring)
        if sqe == self._ffi.NULL:
            raise BlockingIOError(errno.EAGAIN, "the submission queue is full")
        return sqe

    def _submit(self, sqe: Any, token: int, export: Any) -> None:
        self._lib.io_uring_sqe_set_data64(sqe, token)
        self._reads[token] = export  # before the kernel can know of it
        rc = self._lib.io_uring_submit(self._ring)
        if rc < 0:
            # The request lies in the queue and a later submit would send it: end the ring.
            self._abandon()
            _check(rc, "io_uring_enter")

    def _usable(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError("the ring belongs to the process that made it")
        if not self._open:
            raise ValueError("the ring is closed")

    def __enter__(self) -> Ring:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        try:  # the first error is the one to report
            self.close()
        except OSError:
            pass

    def __del__(self) -> None:
        if not getattr(self, "_open", False):
            return
        if self._reads and os.getpid() == self._pid:
            self._abandon()
        else:
            self.close(0.0)
