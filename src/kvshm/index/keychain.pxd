# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""Keys of a growing sequence."""
from libc.stdint cimport uint8_t, uint32_t

from kvshm.index.identity cimport Identity


cdef class KeyChain:
    cdef readonly Identity identity
    cdef uint8_t extra[16]
    cdef bint has_extra
    cdef uint8_t parent[16]
    cdef bint has_parent
    cdef uint8_t *out
    cdef Py_ssize_t n, room
    cdef uint32_t *rest
    cdef uint32_t nrest

    cdef int grow(self, Py_ssize_t more) except -1
    cdef int hash_blocks(self, const uint32_t *tokens, size_t count) except -1
    cdef object copy_from(self, Py_ssize_t start)
