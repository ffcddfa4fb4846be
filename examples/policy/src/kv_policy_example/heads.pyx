# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""The longest unused goes, but the first blocks of a chain count as young: they are system prompts,
which most requests share.

    kvshm agent ARENA --policy kv_policy_example.heads:policy
"""
from libc.stdint cimport uint32_t

from kvshm.ckvshm cimport kvshm_block_record
from kvshm.eviction cimport make_scorer
from kvshm.words cimport read32

cdef enum:
    HEAD = 8       # blocks of a chain
    FAVOUR = 16    # how many times as old they may get


# Called for each cached leaf of the arena, without the GIL; the greatest goes first.
cdef double heads_stay(const kvshm_block_record *b, uint32_t now) noexcept nogil:
    cdef double age = <uint32_t>(now - read32(&b.stamp))
    cdef uint32_t depth = read32(&b.freq_depth) >> 8
    return age / FAVOUR if depth < HEAD else age


policy = make_scorer(heads_stay)
