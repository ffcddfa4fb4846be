# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""One block in each stage of its life."""
from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport kvshm_handle, kvshm_key


cdef class Guard:
    cdef readonly Attachment arena
    cdef kvshm_handle h
    cdef bint owned, filling

    cdef int own(self, Attachment arena, kvshm_handle h) except -1
    cdef int need(self, str what) except -1
    cdef kvshm_handle take(self) noexcept
    cdef void give_back(self, kvshm_handle h) noexcept


cdef class FillGuard(Guard):
    pass


cdef class MutableBlock(FillGuard):
    pass


cdef class CompleteBlock(FillGuard):
    cdef kvshm_key key_


cdef class ImmutableBlock(Guard):
    cdef readonly object status


cdef class WeakBlock:
    cdef readonly Attachment arena
    cdef kvshm_handle h
