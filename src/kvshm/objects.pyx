# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Objects: a state larger than a block (that of a whole sequence) under one key.

It is there as a whole or not at all. Its blocks lie in one piece where the arena's free blocks
allow it; then it is a buffer, else it is read and written by copies.
"""
cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EEXIST, ENOENT, ETIMEDOUT
from libc.stdint cimport int64_t, uint8_t, uint64_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_ENOSPACE, kvshm_fill_options, kvshm_fill_options_init,
                           kvshm_object, kvshm_object_bytes, kvshm_object_close,
                           kvshm_object_commit, kvshm_object_create, kvshm_object_data,
                           kvshm_object_get, kvshm_object_pieces, kvshm_object_read,
                           kvshm_object_write)
from kvshm.convert cimport (Bytes, Keys, as_bytes, as_keys, as_size, deadline_in, fail, now,
                            slice_ms)

from kvshm.errors import Closed, InvalidArgument, Misuse, NoSpaceInTime

cdef object _PRIVATE = object()


@cython.final
@cython.no_gc_clear
cdef class StoredObject:
    """An object being written (from create) or held for reading (from get), until close() or the
    end of a with block. What was not committed by then will never be seen.

    `memoryview(o)`, `numpy.frombuffer(o, dtype)`: its bytes in place, if `contiguous`; writable
    until commit(). The arena cannot be closed while it is open. One thread at a time: Misuse.
    """
    cdef readonly Attachment arena
    cdef kvshm_object *ptr
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint writable
    cdef bint busy
    cdef Py_ssize_t exports
    cdef Py_ssize_t stride

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError("use create() or get()")
        self.stride = 1

    cdef int enter(self) except -1:
        """Begin a call; leave() ends it."""
        with cython.critical_section(self):
            if self.ptr is NULL:
                raise Closed("this object was closed")
            if self.busy:
                raise Misuse("an object is used by one thread at a time")
            self.busy = True
        return 0

    @property
    def closed(self):
        """True after close()."""
        return self.ptr is NULL

    @property
    def pieces(self):
        """In how many pieces it lies."""
        cdef int64_t n
        self.enter()
        n = kvshm_object_pieces(self.ptr, NULL, 0)
        self.busy = False
        if n < 0:
            fail(n, "pieces of an object")
        return n

    @property
    def contiguous(self):
        """True if it is a buffer."""
        return self.pieces == 1

    def write(self, data, offset=0):
        """Copy `data`, any buffer, to `offset`. Before commit() only: Misuse."""
        cdef Bytes source = as_bytes(data, False)
        cdef uint64_t at = as_size(offset, "offset")
        cdef int rc
        self.enter()
        with nogil:
            rc = kvshm_object_write(self.ptr, at, source.ptr, source.n)
        self.busy = False
        if rc < 0:
            fail(rc, "write to an object")

    def read(self, destination, offset=0):
        """Fill `destination`, a writable buffer, with the bytes from `offset` on."""
        cdef Bytes target = as_bytes(destination, True)
        cdef uint64_t at = as_size(offset, "offset")
        cdef int rc
        self.enter()
        with nogil:
            rc = kvshm_object_read(self.ptr, at, target.ptr, target.n)
        self.busy = False
        if rc < 0:
            fail(rc, "read of an object")

    def tobytes(self):
        """A copy of all of it."""
        out = bytearray(self.nbytes)
        self.read(out)
        return bytes(out)

    def commit(self):
        """Publish it: all find it from now on. A second call is Misuse."""
        cdef int rc
        self.enter()
        with nogil:
            rc = kvshm_object_commit(self.ptr)
        self.busy = False
        if rc < 0:
            fail(rc, "commit of an object")
        self.writable = False
        return True

    def close(self):
        """Give its blocks back; committed ones stay cached. BufferError while a buffer of it lives.
        A second call does nothing."""
        cdef kvshm_object *ptr
        if self.ptr is NULL:
            return
        self.enter()
        with cython.critical_section(self):
            self.busy = False
            if self.exports:
                raise BufferError(f"{self.exports} buffers of this object are in use")
            ptr = self.ptr
            self.ptr = NULL
        with nogil:
            kvshm_object_close(ptr)
        self.arena.leave_view()

    def __dealloc__(self):
        if self.ptr is not NULL:
            with nogil:  # may wake those who wait for space
                kvshm_object_close(self.ptr)
            self.arena.leave_view()

    def __enter__(self):
        if self.ptr is NULL:
            raise Closed("this object was closed")
        return self

    def __exit__(self, *exc):
        self.close()

    def __len__(self):
        return self.nbytes

    def __repr__(self):
        state = ("closed" if self.ptr is NULL else "being written" if self.writable
                 else "read-only")
        return f"<kvshm.StoredObject of {self.nbytes} bytes, {state}>"

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef void *data
        buffer.obj = None
        if self.ptr is NULL:
            raise Closed("this object was closed")
        if flags & PyBUF_WRITABLE and not self.writable:
            raise BufferError("a committed object is read-only")
        data = kvshm_object_data(self.ptr)
        if data is NULL:
            raise BufferError("this object lies in several pieces: use read() and write()")
        with cython.critical_section(self):
            self.exports += 1
        buffer.buf = data
        buffer.obj = self
        buffer.len = self.nbytes
        buffer.itemsize = 1
        buffer.readonly = not self.writable
        buffer.ndim = 1
        buffer.format = <char *>"B" if flags & PyBUF_FORMAT else NULL
        buffer.shape = &self.nbytes if flags & PyBUF_ND else NULL
        buffer.strides = &self.stride if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL

    def __releasebuffer__(self, Py_buffer *buffer):
        with cython.critical_section(self):
            self.exports -= 1


cdef StoredObject _wrap(Attachment arena, kvshm_object *ptr, bint writable):
    """For an arena whose views count one more already."""
    cdef StoredObject out = StoredObject.__new__(StoredObject, _PRIVATE)
    out.arena = arena
    out.ptr = ptr
    out.nbytes = <Py_ssize_t>kvshm_object_bytes(ptr)
    out.writable = writable
    return out


def create(Attachment arena not None, key, nbytes, *, timeout=0.0):
    """Room for an object of nbytes under `key` (16 bytes), to be written and committed; None if it
    is there already. nbytes: a number, or text like "1MiB".

    Raises Busy while another process is putting it; NoSpace, after `timeout` seconds of waiting.
    """
    cdef Keys wanted = as_keys([key])
    cdef uint64_t size = as_size(nbytes, "nbytes")
    cdef kvshm_fill_options options = kvshm_fill_options_init()
    cdef double deadline = deadline_in(timeout)
    cdef kvshm_object *ptr = NULL
    cdef int rc = 0
    if not size:
        raise InvalidArgument("an object has at least one byte")
    arena.enter_view()
    try:
        while True:
            options.timeout_ms = slice_ms(deadline)
            with nogil:
                rc = kvshm_object_create(arena.ptr, <const uint8_t *>wanted.ptr, size, &options,
                                         &ptr)
            if rc not in (-ETIMEDOUT, -KVSHM_ENOSPACE) or now() >= deadline:
                break
            PyErr_CheckSignals()
        if rc == 0:
            return _wrap(arena, ptr, True)
        if rc == -ETIMEDOUT or (rc == -KVSHM_ENOSPACE and timeout > 0):
            raise NoSpaceInTime(f"object of {size} bytes: no space within {timeout} s")
        if rc != -EEXIST:
            fail(rc, f"object of {size} bytes")
    finally:
        if rc != 0:
            arena.leave_view()
    return None


def get(Attachment arena not None, key):
    """The object under `key`, held for reading; None if there is none."""
    cdef Keys wanted = as_keys([key])
    cdef kvshm_object *ptr = NULL
    cdef int rc
    arena.enter_view()
    with nogil:
        rc = kvshm_object_get(arena.ptr, <const uint8_t *>wanted.ptr, &ptr)
    if rc == 0:
        return _wrap(arena, ptr, False)
    arena.leave_view()
    if rc != -ENOENT:
        fail(rc, "object")
    return None
