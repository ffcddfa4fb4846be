# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""What distinguishes one model's KV from another's; keys are derived from it."""
from libc.stdint cimport uint8_t, uint32_t

from kvshm.convert cimport Bytes


cdef class Identity:
    cdef readonly str model
    cdef readonly str weights
    cdef readonly str dtype
    cdef readonly str layout
    cdef readonly uint32_t block_tokens
    cdef readonly str parallel
    cdef readonly str namespace
    cdef readonly uint32_t epoch
    cdef readonly bint allow_unknown_weights
    cdef readonly str text
    cdef uint8_t secret[32]
    cdef uint8_t mark[16]

    cdef int digest(self, object salt, object extra, uint8_t *out) except -1


cdef class Tokens:
    """Borrowed token ids, uint32; valid while this object lives."""
    cdef object array
    cdef Py_buffer view
    cdef bint held
    cdef const uint32_t *ptr
    cdef size_t n


cdef Tokens as_tokens(object tokens)
cdef Bytes as_octets(object value, str what)
