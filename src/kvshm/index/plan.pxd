# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""The decision for one request."""
from libc.stdint cimport uint32_t

from kvshm.core cimport Arena
from kvshm.convert cimport Keys
from kvshm.lease cimport Lease


cdef class MatchPlan:
    cdef readonly Arena arena
    cdef readonly object keys
    cdef readonly Lease lease
    cdef readonly Py_ssize_t block_tokens
    cdef readonly Py_ssize_t tokens
    cdef readonly Py_ssize_t reused_blocks
    cdef readonly Py_ssize_t reused_tokens
    cdef readonly object pending
    cdef readonly Py_ssize_t pending_blocks
    cdef readonly object states
    cdef readonly double waited
    cdef readonly Py_ssize_t waits
    cdef readonly str reason
    cdef readonly bint fits
    cdef Keys c_keys

    cdef int seek(self, bint touch, str tag) except -1
    cdef int await_others(self, double limit, double compute, bint touch, str tag) except -1
    cdef int settle(self, bint keep_last) except -1
