# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""An engine's paged KV tensors, as a table of runs."""
from libc.stdint cimport uint32_t, uint64_t

from kvshm.ckvshm cimport kvshm_pages, kvshm_run


cdef class Pages:
    cdef kvshm_pages table  # runs: an array of our own
    cdef kvshm_run *runs_
    cdef readonly uint32_t rows
    cdef readonly uint64_t slice_bytes
    cdef readonly str layout_text
    cdef readonly str device
    cdef readonly bint writable
    cdef object tensors

    cdef kvshm_pages table_on(self, object stream) except *
