# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""The bytes of one block, in place."""
from libc.stdint cimport uint64_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport kvshm_handle


cdef class View:
    cdef Attachment arena
    cdef kvshm_handle handle_
    cdef char *data
    cdef Py_ssize_t size
    cdef Py_ssize_t stride
    cdef Py_ssize_t exports
    cdef bint held
    cdef bint filling
    cdef bint checked
    cdef uint64_t sum

    cdef int give_back(self) noexcept
    cdef int usable(self) except -1


cdef View view_held(Attachment arena, kvshm_handle h)
cdef View view_fill(Attachment arena, kvshm_handle h)
