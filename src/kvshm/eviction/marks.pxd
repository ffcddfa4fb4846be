# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""Choosing victims beforehand, by a scorer of your own.

A scorer in Cython: `cdef double mine(const kvshm_block_record *b, uint32_t now) noexcept nogil`;
the greatest score goes first, a negative one never. now - b.stamp is the age in releases.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport kvshm_block_record

ctypedef double (*score_fn)(const kvshm_block_record *b, uint32_t now) noexcept nogil


cdef class Scorer:
    cdef score_fn function

# The function as an object that Python code can hand on; it must outlive its module, as any does.
cdef Scorer make_scorer(score_fn function)

# Marks up to n victims and returns how many; -1 with an exception. scores, if not NULL, has one
# number a block and stands in for the scorer. marked, if not NULL, has the life number under which
# each block was marked before: those are left out, new ones are entered. out: n ids, or NULL.
cdef int64_t mark(Attachment arena, uint64_t n, score_fn scorer, const double *scores,
                  uint64_t *marked, uint32_t *out) except -1
cdef double by_age(const kvshm_block_record *b, uint32_t now) noexcept nogil
cdef double by_frequency(const kvshm_block_record *b, uint32_t now) noexcept nogil
cdef double by_freqage(const kvshm_block_record *b, uint32_t now) noexcept nogil
