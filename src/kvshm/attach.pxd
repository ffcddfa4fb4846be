# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""The life of this process's attachment to an arena."""
from libc.stdint cimport uint32_t, uint64_t

from kvshm.ckvshm cimport kvshm_arena


# Waits up to a number of milliseconds: 0, or a negative code.
ctypedef int (*waiting_call)(kvshm_arena *, uint32_t) noexcept nogil


cdef class Attachment:
    cdef kvshm_arena *ptr
    cdef Py_ssize_t live_views
    cdef bint closing
    cdef bint gone
    cdef object lease_watch
    cdef object __weakref__
    cdef readonly str name
    cdef readonly str path
    cdef readonly uint64_t block_bytes
    cdef readonly uint32_t blocks
    cdef readonly uint32_t slot
    cdef readonly object identity

    cdef int alive(self) except -1
    cdef bint wait_for(self, waiting_call call, double deadline, str what) except -1
    cdef bint is_inherited(self) noexcept
    cdef int enter_view(self) except -1
    cdef void leave_view(self) noexcept
