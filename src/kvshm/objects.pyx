# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Objects: a state larger than a block (that of a whole sequence) under one key.

It is there as a whole or not at all. Where its blocks lie side by side it is one buffer, else
several; pieces(), write(), read() and bytes() work for both.
"""
cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EEXIST, ENOENT, ETIMEDOUT
from libc.stdint cimport int64_t, uint8_t, uint64_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_ENOSPACE, KVSHM_EPENDING, KVSHM_NO_CACHE, KVSHM_NO_EVICT,
                           kvshm_fill_options, kvshm_fill_options_init, kvshm_object,
                           kvshm_object_bytes, kvshm_object_close, kvshm_object_commit,
                           kvshm_object_create, kvshm_object_data, kvshm_object_get,
                           kvshm_object_pieces, kvshm_object_read, kvshm_object_write,
                           kvshm_piece)
from kvshm.convert cimport (Bytes, Keys, as_bytes, as_keys, as_ms, as_number, as_size,
                            deadline_in, fail, no_space_in_time, now, slice_ms)

from kvshm.errors import Closed, InvalidArgument

cdef object _PRIVATE = object()


@cython.no_gc_clear
cdef class StoredObject:
    """What ObjectFill and Object have in common. Usable from any thread.

    The arena cannot be closed while one is open, and none can be closed while a buffer made from it
    lives. In a forked child the memory is absent, and asking for it raises Forked.
    """

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError("use Arena.create_object() or .get_object()")

    cdef int enter(self) except -1:
        """Until leave() nobody closes it."""
        with cython.critical_section(self):
            if self.ptr is NULL:
                raise Closed("this object was closed")
            self.users += 1
        return 0

    cdef void leave(self) noexcept:
        with cython.critical_section(self):
            self.users -= 1

    cdef kvshm_object *take(self) except NULL:
        """Its C object, for the caller alone from now on."""
        cdef kvshm_object *ptr
        with cython.critical_section(self):
            if self.ptr is NULL:
                raise Closed("this object was closed")
            if self.users:
                raise BufferError(f"{self.users} buffers of this object are in use")
            ptr = self.ptr
            self.ptr = NULL
        return ptr

    cdef int64_t count(self) except -1:
        cdef int64_t n
        self.enter()
        n = kvshm_object_pieces(self.ptr, NULL, 0)
        self.leave()
        if n < 0:
            fail(n, "pieces of an object")
        return n

    @property
    def closed(self):
        """True after close()."""
        return self.ptr is NULL

    @property
    def contiguous(self):
        """True if it lies in one piece: then it is a buffer itself."""
        return self.count() == 1

    def pieces(self):
        """Its bytes in place, as a list of memoryviews in order."""
        cdef int64_t n = self.count()
        cdef int64_t i
        cdef kvshm_piece *found = <kvshm_piece *>PyMem_Malloc(n * sizeof(kvshm_piece))
        if found is NULL:
            raise MemoryError()
        try:
            self.enter()
            n = kvshm_object_pieces(self.ptr, found, n)
            self.leave()
            if n < 0:
                fail(n, "pieces of an object")
            return [memoryview(_piece(self, found[i])) for i in range(n)]
        finally:
            PyMem_Free(found)

    def read(self, offset, destination):
        """Fill `destination`, a writable buffer, with the bytes from `offset` on."""
        cdef Bytes target = as_bytes(destination, True)
        cdef uint64_t at = as_size(offset, "offset")
        cdef int rc
        self.enter()
        with nogil:
            rc = kvshm_object_read(self.ptr, at, target.ptr, target.n)
        self.leave()
        if rc < 0:
            fail(rc, "read of an object")

    def __bytes__(self):
        cdef bytes out = PyBytes_FromStringAndSize(NULL, self.nbytes)
        cdef char *to = PyBytes_AS_STRING(out)
        cdef int rc
        self.enter()
        with nogil:
            rc = kvshm_object_read(self.ptr, 0, to, self.nbytes)
        self.leave()
        if rc < 0:
            fail(rc, "read of an object")
        return out

    def close(self):
        """Give its blocks back. BufferError while a buffer of it lives; a second call does
        nothing."""
        cdef kvshm_object *ptr
        if self.ptr is NULL:
            return
        ptr = self.take()
        with nogil:  # may wake those who wait for space
            kvshm_object_close(ptr)
        self.arena.leave_view()

    def __dealloc__(self):
        if self.ptr is not NULL:
            with nogil:
                kvshm_object_close(self.ptr)
            self.arena.leave_view()

    def __enter__(self):
        if self.ptr is NULL:
            raise Closed("this object was closed")
        return self

    def __exit__(self, kind, error, trace):
        try:
            self.close()
        except BufferError:
            if kind is None:
                raise
            # Buffers in the frames of the exception under way: closed when they and we are gone.

    def __len__(self):
        return self.nbytes

    def __repr__(self):
        state = "closed" if self.ptr is NULL else f"key {self.key.hex()}"
        return f"<kvshm.{type(self).__name__} of {self.nbytes} bytes, {state}>"

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        cdef void *data
        cdef int64_t n
        buffer.obj = None
        n = self.count()
        self.enter()
        data = kvshm_object_data(self.ptr)
        self.leave()
        if data is NULL:
            raise BufferError(f"this object lies in {n} pieces: use pieces(), or copies")
        _export(self, self, data, &self.nbytes, buffer, flags)

    def __releasebuffer__(self, Py_buffer *buffer):
        self.leave()


@cython.final
@cython.no_gc_clear
cdef class ObjectFill(StoredObject):
    """An object being written. What is not committed when it is closed, or dies, is never seen.

    `memoryview(fill)`, `numpy.frombuffer(fill, dtype)` and so on write to it in place if it is
    `contiguous`.
    """

    def write(self, offset, data):
        """Copy `data`, any buffer or tensor in host memory, to `offset`. Counted as a copy."""
        cdef Bytes source = as_bytes(data, False)
        cdef uint64_t at = as_size(offset, "offset")
        cdef int rc
        self.enter()
        with nogil:
            rc = kvshm_object_write(self.ptr, at, source.ptr, source.n)
        self.leave()
        if rc < 0:
            fail(rc, "write to an object")

    def commit(self):
        """Publish it, and return the Object that holds it for reading. BufferError while a buffer
        of it lives: whoever has one could still write."""
        cdef kvshm_object *ptr = self.take()
        cdef int rc
        with nogil:
            rc = kvshm_object_commit(ptr)
        if rc < 0:
            self.ptr = ptr
            fail(rc, "commit of an object")
        return _wrap(Object.__new__(Object, _PRIVATE), self.arena, self.key, ptr, False)


@cython.final
@cython.no_gc_clear
cdef class Object(StoredObject):
    """An object held for reading, until close() or the end of a with block.

    `memoryview(o)`, `numpy.frombuffer(o, dtype)`, `torch.frombuffer(o, dtype=...)`: its bytes in
    place, read-only, if it is `contiguous`; `bytes(o)` is a copy.
    """


@cython.no_gc_clear
cdef class _Piece:
    """What the memoryviews of pieces() are of."""
    cdef StoredObject owner
    cdef void *data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        buffer.obj = None
        self.owner.count()
        _export(self, self.owner, self.data, &self.size, buffer, flags)

    def __releasebuffer__(self, Py_buffer *buffer):
        self.owner.leave()


cdef _Piece _piece(StoredObject owner, kvshm_piece found):
    cdef _Piece one = _Piece.__new__(_Piece)
    one.owner = owner
    one.data = found.data
    one.size = <Py_ssize_t>found.bytes
    return one


cdef Py_ssize_t ONE = 1


cdef int _export(object exporter, StoredObject owner, void *data, Py_ssize_t *size,
                 Py_buffer *buffer, int flags) except -1:
    if flags & PyBUF_WRITABLE and not owner.writable:
        raise BufferError("an object that was committed is read-only")
    owner.enter()
    buffer.buf = data
    buffer.obj = exporter
    buffer.len = size[0]
    buffer.itemsize = 1
    buffer.readonly = not owner.writable
    buffer.ndim = 1
    buffer.format = <char *>"B" if flags & PyBUF_FORMAT else NULL
    buffer.shape = size if flags & PyBUF_ND else NULL
    buffer.strides = &ONE if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
    buffer.suboffsets = NULL
    buffer.internal = NULL
    return 0


cdef StoredObject _wrap(StoredObject out, Attachment arena, bytes key, kvshm_object *ptr,
                        bint writable):
    """For an arena whose views count one more already."""
    out.arena = arena
    out.key = key
    out.ptr = ptr
    out.nbytes = <Py_ssize_t>kvshm_object_bytes(ptr)
    out.writable = writable
    return out


cdef object create_object(Attachment arena, object key, object nbytes, object timeout,
                          bint no_cache, object priority, bint evict, object tenant,
                          object ttl, object priority_seconds):
    """An ObjectFill, or None if there is an object of this key."""
    cdef Keys wanted = as_keys([key])
    cdef uint64_t size = as_size(nbytes, "nbytes")
    cdef kvshm_fill_options options = kvshm_fill_options_init()
    cdef double deadline = deadline_in(timeout)
    cdef bint patient = timeout > 0
    cdef kvshm_object *ptr = NULL
    cdef int rc = -1
    if not size:
        raise InvalidArgument("an object has at least one byte")
    if priority is not None and not 1 <= priority <= 100:
        raise InvalidArgument(f"priority: expected 1 to 100, got {priority}")
    options.flags = (KVSHM_NO_CACHE if no_cache else 0) | (0 if evict else KVSHM_NO_EVICT)
    options.priority = as_number(priority or 0, "priority")
    options.tenant = as_number(tenant, "tenant")
    options.ttl_ms = as_ms(ttl, "ttl")
    options.priority_ms = as_ms(priority_seconds, "priority_seconds")
    arena.enter_view()
    try:
        while True:
            options.timeout_ms = slice_ms(deadline) if patient else 0
            with nogil:
                rc = kvshm_object_create(arena.ptr, <const uint8_t *>wanted.ptr, size, &options,
                                         &ptr)
            if not patient or now() >= deadline or rc not in (-ETIMEDOUT, -KVSHM_ENOSPACE):
                break
            PyErr_CheckSignals()
    finally:
        if rc != 0:
            arena.leave_view()
    if rc == -EEXIST:
        return None
    if patient and (rc == -ETIMEDOUT or rc == -KVSHM_ENOSPACE):
        raise no_space_in_time(f"object of {size} bytes", timeout)
    if rc == -KVSHM_EPENDING:
        fail(rc, "another process is putting this object, or left parts of it that are in use")
    if rc < 0:
        fail(rc, f"object of {size} bytes")
    return _wrap(ObjectFill.__new__(ObjectFill, _PRIVATE), arena, bytes(key), ptr, True)


cdef object get_object(Attachment arena, object key):
    """An Object, or None."""
    cdef Keys wanted = as_keys([key])
    cdef kvshm_object *ptr = NULL
    cdef int rc
    arena.enter_view()
    with nogil:
        rc = kvshm_object_get(arena.ptr, <const uint8_t *>wanted.ptr, &ptr)
    if rc == 0:
        return _wrap(Object.__new__(Object, _PRIVATE), arena, bytes(key), ptr, False)
    arena.leave_view()
    if rc != -ENOENT:
        fail(rc, "get an object")
    return None


cdef bint put_object(Attachment arena, object key, object data, dict options) except -1:
    """False if there was one of this key."""
    cdef Bytes source = as_bytes(data, False)
    cdef object fill = arena.create_object(key, source.n, **options)
    if fill is None:
        return False
    with fill:
        fill.write(0, data)
        fill.commit().close()
    return True
