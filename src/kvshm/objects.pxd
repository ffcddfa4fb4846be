# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""States larger than a block, under one key."""
from libc.stdint cimport int64_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport kvshm_object


cdef class StoredObject:
    cdef readonly Attachment arena
    cdef readonly bytes key
    cdef readonly Py_ssize_t nbytes
    cdef kvshm_object *ptr
    cdef bint writable
    cdef Py_ssize_t users  # buffers that live and calls under way
    cdef object __weakref__

    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef kvshm_object *take(self) except NULL
    cdef int64_t count(self) except -1


cdef class ObjectFill(StoredObject):
    pass


cdef class Object(StoredObject):
    pass


cdef object create_object(Attachment arena, object key, object nbytes, object timeout,
                          bint no_cache, object priority, bint evict, object tenant,
                          object ttl, object priority_seconds)
cdef object get_object(Attachment arena, object key)
cdef bint put_object(Attachment arena, object key, object data, dict options) except -1
