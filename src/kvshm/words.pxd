# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""Reading the shared block table: the word of a block, and its hints (docs/protocol.md, 1).

Everything but the word is a hint. Each field is read once, by an atomic load, since others write.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from kvshm.ckvshm cimport (KVSHM_FREE, KVSHM_NONE, KVSHM_READY, kvshm_block_record)


cdef extern from *:
    """
    /* relaxed: a snapshot that is a guess anyway; the library checks before it acts on it */
    template <class T> static inline T kvshm_read(const T *p) {
      return __atomic_load_n(p, __ATOMIC_RELAXED);
    }
    """
    uint64_t read64 "kvshm_read"(const uint64_t *p) noexcept nogil
    uint32_t read32 "kvshm_read"(const uint32_t *p) noexcept nogil
    uint8_t read8 "kvshm_read"(const uint8_t *p) noexcept nogil


cdef inline uint32_t word_state(uint64_t word) noexcept nogil:
    return <uint32_t>(word >> 48) & 7


cdef inline uint64_t word_holders(uint64_t word) noexcept nogil:
    return word & ((<uint64_t>1 << 48) - 1)


cdef inline uint32_t word_clock(uint64_t word) noexcept nogil:
    return <uint32_t>(word >> 51) & 3


cdef inline bint word_ready(uint64_t word) noexcept nogil:
    """READY or READY_LAST."""
    return word_state(word) & 3 == <uint32_t>KVSHM_READY


cdef inline bint inactive(const kvshm_block_record *b) noexcept nogil:
    """Cached, held by nobody, and not exempt from eviction."""
    cdef uint64_t word = read64(&b.word)
    return (word_state(word) == <uint32_t>KVSHM_READY and word_holders(word) == 0
            and (read8(&b.priority) & 127) < 100)


cdef inline bint vacant(const kvshm_block_record *b) noexcept nogil:
    return word_state(read64(&b.word)) == <uint32_t>KVSHM_FREE


cdef inline uint32_t parent_of(const kvshm_block_record *table, uint64_t n,
                               uint32_t x) noexcept nogil:
    """The block that x follows, if its link is valid; else KVSHM_NONE."""
    cdef uint32_t p = read32(&table[x].parent)
    if p >= n or p == x or read32(&table[x].parent_check) != <uint32_t>read64(&table[p].key[0]):
        return KVSHM_NONE
    return p
