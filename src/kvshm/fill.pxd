# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""Blocks being written."""
from libc.stdint cimport uint32_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport kvshm_handle
from kvshm.convert cimport Handles


cdef class Fill:
    cdef readonly Attachment arena
    cdef readonly uint32_t parts
    cdef readonly bint member
    cdef readonly object keys
    cdef readonly object status
    cdef readonly object evicted
    cdef Handles handles_
    cdef uint32_t first  # those before it have left this Fill
    cdef uint32_t published
    cdef bint open_
    cdef object stored  # by part, int32 (n,): what kvshm.paged's store said of each; None before
    cdef object __weakref__

    cdef int usable(self) except -1
    cdef int leave(self) noexcept
    cdef kvshm_handle handle_at(self, Py_ssize_t index) except *


cdef Fill allocate_fill(Attachment arena, object n, object keys, kvshm_handle parent,
                        object parts, uint32_t flags, object timeout, object priority,
                        object tenant, object ttl, object priority_seconds)
cdef Fill join_fill(Attachment arena, object handles)
