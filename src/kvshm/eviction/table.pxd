# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""The block table as a buffer."""
from libc.stdint cimport uint64_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport kvshm_block_record


cdef class BlockTable:
    cdef readonly Attachment arena
    cdef const kvshm_block_record *records
    cdef uint64_t n
    cdef Py_ssize_t shape
    cdef Py_ssize_t stride
    cdef bint counted


cdef BlockTable open_table(Attachment arena)
