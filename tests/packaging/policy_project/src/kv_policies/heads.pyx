# cython: language_level=3
"""A scorer in C: the first blocks of every chain stay, of the rest the longest unused goes.

System prompts are the heads of chains. They are the blocks that most requests share, and by age
alone they go with the conversations that happened to stand on them.
"""
from libc.stdint cimport uint32_t, uint64_t

from kvshm cimport Arena
from kvshm.ckvshm cimport kvshm_block_record
from kvshm.eviction cimport mark, score_fn
from kvshm.words cimport read32

cdef enum:
    HEAD = 4    # blocks of a chain that stay


cdef double tails_by_age(const kvshm_block_record *b, uint32_t now) noexcept nogil:
    cdef uint32_t depth = read32(&b.freq_depth) >> 8
    if depth < HEAD:
        return -1
    return <uint32_t>(now - read32(&b.stamp))


cdef class HeadKeeper:
    """run(n) marks up to n victims; a subclass in Cython may put in a scorer of its own."""

    cdef readonly Arena arena
    cdef score_fn scorer

    head = HEAD

    def __cinit__(self, Arena arena not None):
        self.arena = arena
        self.scorer = tails_by_age

    def run(self, uint64_t n):
        return mark(self.arena, n, self.scorer, NULL, NULL, NULL)
