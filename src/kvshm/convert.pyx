# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Python values to C arguments and C results to Python values.

Nothing here touches an arena. Every function raises kvshm.InvalidArgument for what it cannot take.
"""
import re
from operator import index

from cpython.buffer cimport (PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release,
                             PyObject_CheckBuffer, PyObject_GetBuffer)
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport ETIMEDOUT
from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from kvshm.ckvshm cimport (KVSHM_ENOSPACE, KVSHM_KEY_BYTES, kvshm_handle, kvshm_key,
                           kvshm_last_error, kvshm_last_refusal, kvshm_refusal_name,
                           kvshm_strerror)

import numpy as np

from kvshm.errors import InvalidArgument, NoSpaceInTime, from_code, wrong_size
from kvshm.records import Handle

# A handle as it lies in memory: what Lease.handle_array gives and Arena.pin and .join take.
HANDLE_DTYPE = np.dtype([("seq", "<u8"), ("id", "<u4"), ("zero", "<u4")])

cdef double SLICE = 0.1  # the longest that a signal may have to wait for its handler
_UNITS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:iB)?|B)?\s*", re.ASCII)


cdef class Keys:
    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class Handles:
    def __dealloc__(self):
        PyMem_Free(self.ptr)


cdef class Bytes:
    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef Keys as_keys(object keys):
    """Keys from (n, 16) uint8, n * 16 bytes, or a sequence of 16-byte strings."""
    cdef Keys out = Keys.__new__(Keys)
    cdef Py_ssize_t count
    if isinstance(keys, (list, tuple)):
        rows = []
        for i, key in enumerate(keys):
            try:
                row = memoryview(key).tobytes()
            except TypeError:
                raise InvalidArgument(
                    f"key {i}: expected 16 bytes, got {type(key).__name__}") from None
            if len(row) != KVSHM_KEY_BYTES:
                raise wrong_size(f"key {i}: bytes", KVSHM_KEY_BYTES, len(row))
            rows.append(row)
        keys = b"".join(rows)
    try:
        PyObject_GetBuffer(keys, &out.view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    except (BufferError, ValueError):  # strided: only a copy helps
        keys = np.ascontiguousarray(keys)
        PyObject_GetBuffer(keys, &out.view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    except TypeError:
        raise InvalidArgument(
            f"keys: expected (n, 16) uint8 or a list of bytes, got {type(keys).__name__}") from None
    out.held = True
    count = out.view.len // KVSHM_KEY_BYTES
    if out.view.itemsize != 1 or count * KVSHM_KEY_BYTES != out.view.len or (
            out.view.ndim == 2 and out.view.len and out.view.shape[1] != KVSHM_KEY_BYTES):
        raise InvalidArgument(
            f"keys: expected (n, 16) uint8, got {out.view.len} bytes in items of "
            f"{out.view.itemsize}, {out.view.ndim} dimensions")
    if count > 0x7fffffff:
        raise InvalidArgument(f"keys: {count} in one call")
    out.ptr = <const kvshm_key *>out.view.buf
    out.n = <uint32_t>count
    return out


cdef Bytes as_bytes(object data, bint writable):
    """Contiguous memory of anything that has some, whatever its item type."""
    cdef Bytes out = Bytes.__new__(Bytes)
    cdef int flags = PyBUF_C_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0)
    if not PyObject_CheckBuffer(data):
        if not hasattr(data, "__array__"):
            raise InvalidArgument(f"expected bytes or an array, got {type(data).__name__}")
        data = np.asarray(data)  # a tensor: numpy knows how to share its memory
    try:
        PyObject_GetBuffer(data, &out.view, flags)
    except (BufferError, ValueError) as error:
        if writable:
            raise InvalidArgument(f"destination: {error}") from None
        data = np.ascontiguousarray(data)
        PyObject_GetBuffer(data, &out.view, flags)
    out.held = True
    out.ptr = <char *>out.view.buf
    out.n = out.view.len
    return out


cdef Handles new_handles(Py_ssize_t n):
    cdef Handles out = Handles.__new__(Handles)
    cdef size_t size = (n if n > 0 else 1) * sizeof(kvshm_handle)
    if n > 0x7fffffff:
        raise InvalidArgument(f"{n} blocks in one call")
    out.ptr = <kvshm_handle *>PyMem_Malloc(size)
    if out.ptr is NULL:
        raise MemoryError()
    memset(out.ptr, 0, size)
    out.n = <uint32_t>n
    return out


cdef kvshm_handle as_handle(object handle) except *:
    """From a Handle, or any (id, seq)."""
    cdef kvshm_handle h
    try:
        block, seq = handle
        h.id, h.seq, h.zero = index(block), index(seq), 0
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"handle: expected (id, seq), got {handle!r}") from None
    return h


cdef Handles as_handles(object handles):
    """From one Handle, an iterable of them, or an array of HANDLE_DTYPE."""
    cdef Handles out
    cdef Bytes source
    cdef Py_ssize_t i
    if isinstance(handles, np.ndarray) and handles.dtype == HANDLE_DTYPE:
        source = as_bytes(handles, False)
        out = new_handles(handles.size)
        memcpy(out.ptr, source.ptr, source.n)
        return out
    if isinstance(handles, Handle):
        handles = (handles,)
    handles = list(handles)
    out = new_handles(len(handles))
    for i in range(len(handles)):
        out.ptr[i] = as_handle(handles[i])
    return out


cdef object handle_array(const kvshm_handle *h, uint32_t n):
    """A copy as an array of HANDLE_DTYPE: what goes to another process at little cost."""
    out = np.empty(n, HANDLE_DTYPE)
    if n:
        memcpy(as_bytes(out, True).ptr, h, n * sizeof(kvshm_handle))
    return out


cdef object from_handle(kvshm_handle h):
    return Handle(h.id, h.seq)


cdef uint64_t as_size(object size, str what) except? 0xffffffffffffffff:
    """Bytes from a number or from "8GiB", "2M", "4096"; units are powers of 1024."""
    if size is None:
        return 0
    try:
        if not isinstance(size, str):
            return index(size)
        found = _SIZE.fullmatch(size)
        if found is not None:
            value = float(found[1]) if "." in found[1] else int(found[1])
            return int(value * _UNITS[found[2] or ""])
    except (TypeError, ValueError, OverflowError):  # no number, or one that no 64 bits can hold
        pass
    raise InvalidArgument(
        f"{what}: expected a number of bytes or text like '8GiB', got {str(size)[:80]!r}")


cdef uint32_t as_number(object value, str what) except? 0xffffffff:
    """A 32-bit id or number. C would cut a float off: 1.5 is no block."""
    try:
        return index(value)
    except (TypeError, OverflowError):
        raise InvalidArgument(f"{what}: expected 0 to 2^32-1, got {str(value)[:80]}") from None


cdef uint64_t as_tag(object tag) except? 0xffffffffffffffff:
    """What the inspector shows of a lease: a number, or the first 8 bytes of a text."""
    if isinstance(tag, str):
        return int.from_bytes(tag.encode()[:8], "little")
    try:
        return index(tag)
    except (TypeError, OverflowError):
        raise InvalidArgument(f"tag: expected text or a 64-bit number, got {tag!r}") from None


cdef object failure(int64_t rc, str what):
    """The exception for a negative code of the thread's last call; `what` says what was tried."""
    cdef const char *text = kvshm_strerror(<int>rc)
    cdef const char *detail = kvshm_last_error()
    error = from_code(<int>rc, what, text.decode("utf-8", "replace"),
                      detail.decode("utf-8", "replace"))
    if rc == -KVSHM_ENOSPACE:
        error.reason = kvshm_refusal_name(kvshm_last_refusal()).decode()
    return error


cdef int fail(int64_t rc, str what) except -1:
    """Raise it."""
    raise failure(rc, what)


cdef object no_space_in_time(str what, object timeout):
    """For a thread whose last call found no space, and has waited for it."""
    error = NoSpaceInTime(f"{what}: no space within {timeout} s: "
                          + kvshm_last_error().decode("utf-8", "replace"))
    error.code = ETIMEDOUT
    error.reason = kvshm_refusal_name(kvshm_last_refusal()).decode()
    return error


cdef uint64_t as_ms(object seconds, str what) except? 0xffffffffffffffff:
    """A time to last, None or infinity = for good (0): at least a millisecond."""
    cdef double value
    if seconds is None:
        return 0
    try:
        value = seconds
    except TypeError:
        raise InvalidArgument(f"{what}: expected seconds, got {seconds!r}") from None
    if value == float("inf"):
        return 0
    if not 0 < value < 1e9:
        raise InvalidArgument(f"{what}: expected seconds above 0, got {seconds!r}")
    return <uint64_t>(value * 1000) or 1


cdef double now() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <double>t.tv_sec + <double>t.tv_nsec * 1e-9


cdef double deadline_in(object timeout) except? -1:
    """The moment `timeout` seconds from now. There is no waiting without a limit."""
    cdef double seconds
    try:
        seconds = timeout
    except TypeError:
        raise InvalidArgument(f"timeout: expected seconds, got {timeout!r}") from None
    if not isfinite(seconds) or seconds < 0 or seconds > 1e6:
        raise InvalidArgument(f"timeout: expected 0 to 1e6 seconds, got {seconds}")
    return now() + seconds


cdef uint32_t slice_ms(double deadline) noexcept nogil:
    """Milliseconds to wait next; 0 when the deadline has passed."""
    cdef double left = deadline - now()
    if left <= 0:
        return 0
    return <uint32_t>((SLICE if left > SLICE else left) * 1000) or 1


def parse_size(size):
    """Bytes from a number or a text such as "8GiB", "2M" or "4096" (powers of 1024)."""
    return as_size(size, "size")


def tag_number(tag):
    """The 64-bit number that stands for `tag` in shared memory: first 8 bytes, little-endian."""
    return as_tag(tag)
