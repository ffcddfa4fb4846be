# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""Holds of n blocks as one object."""
from libc.stdint cimport int64_t, uint32_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport kvshm_handle, kvshm_lease, kvshm_load
from kvshm.loads cimport Load


cdef class Lease:
    cdef readonly Attachment arena
    cdef readonly str tag
    cdef readonly double taken_at
    cdef readonly object pending
    cdef readonly object which
    cdef readonly object results
    cdef kvshm_lease lease
    cdef uint32_t *blocks
    cdef uint32_t n
    cdef bint released_
    cdef Load load
    cdef object states_
    cdef Py_ssize_t promised_
    cdef object ids_
    cdef object __weakref__

    cdef int held(self) except -1
    cdef int give_back(self) noexcept
    cdef int look(self) except -1
    cdef int settle(self, Load load, int64_t held) except -1
    cdef kvshm_handle handle_at(self, Py_ssize_t index) except *


cdef Lease new_lease(Attachment arena, object tag, uint32_t room)
cdef Lease begin_lease(Lease lease, kvshm_lease token, uint32_t n)
cdef Lease lease_of_holds(Attachment arena, object tag, const kvshm_handle *h, uint32_t n)
cdef Lease begin_load(Lease lease, kvshm_load *ptr, uint32_t n)
