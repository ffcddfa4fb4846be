# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""Blocks on their way from the disk: what a Lease of match(load=True) has until all have ended."""
cimport cython
from libc.stdint cimport int64_t, uint32_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport kvshm_lease, kvshm_load


cdef class Load:
    cdef Attachment arena
    cdef kvshm_load *ptr
    cdef readonly uint32_t n
    cdef readonly uint32_t under_way
    cdef readonly object states
    cdef uint32_t users
    cdef bint over
    cdef bint noticed
    cdef list waiting
    cdef cython.pythread_type_lock lock
    cdef object __weakref__

    cdef bint enter(self) noexcept
    cdef void leave(self) noexcept
    cdef void drop(self) noexcept
    cdef void free(self) noexcept
    cdef void take_back(self) noexcept
    cdef int wait(self, uint32_t ms) except? 1
    cdef int64_t look(self, uint32_t *ids) except -1
    cdef int64_t settle(self, kvshm_lease *lease) except -1
    cdef int listen(self, object waiter) except -1


cdef Load new_load(Attachment arena, kvshm_load *ptr, uint32_t n)
