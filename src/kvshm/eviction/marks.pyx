# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Choosing victims beforehand: a scorer decides, an allocation in any process takes them.

Leaf first. A block is marked only when all its cached children stand before it among the marks, so
that no chain loses its middle: what lies behind a gap can never match again. Marks are hints. Who
takes one checks its life number and that nobody holds it; a block used meanwhile is not evicted.
"""
cimport cython
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int64_t, uint32_t, uint64_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_NONE, kvshm_block_record, kvshm_block_table, kvshm_handle,
                           kvshm_mark_victims, kvshm_marks_left)
from kvshm.convert cimport Bytes, as_bytes, fail
from kvshm.eviction.table cimport BlockTable, open_table
from kvshm.words cimport inactive, parent_of, read32, read64, vacant, word_ready

import numpy as np

from kvshm.errors import InvalidArgument, wrong_size
from kvshm.eviction.table import BLOCK_DTYPE

cdef enum:
    RING = 8192  # marks that an arena has room for

MOST_MARKS = RING
"""Marks that an arena has room for."""
cdef object _PRIVATE = object()


@cython.final
cdef class Scorer:
    """A scorer in C as an object, for whom a name is all that is needed (kvshm agent --policy).

    Made in Cython by make_scorer(function); accepted wherever a scorer is.
    """

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError("make_scorer() of kvshm.eviction, in Cython, makes one of a C function")


cdef Scorer make_scorer(score_fn function):
    cdef Scorer made = Scorer.__new__(Scorer, _PRIVATE)
    if function is NULL:
        raise InvalidArgument("make_scorer: expected a function, got NULL")
    made.function = function
    return made


cdef double by_age(const kvshm_block_record *b, uint32_t now) noexcept nogil:
    """The longest unused."""
    return <uint32_t>(now - read32(&b.stamp))


cdef double by_frequency(const kvshm_block_record *b, uint32_t now) noexcept nogil:
    """The least used; of those the longest unused."""
    return (15 - (read32(&b.freq_depth) & 15)) * 4294967296.0 + <uint32_t>(now - read32(&b.stamp))


cdef double by_freqage(const kvshm_block_record *b, uint32_t now) noexcept nogil:
    """Age, halved for each level of use: from 2, 6 and 15 uses on."""
    cdef uint32_t uses = read32(&b.freq_depth) & 15
    cdef uint32_t level = (uses >= 2) + (uses >= 6) + (uses >= 15)
    return <double><uint32_t>(now - read32(&b.stamp)) / (1 << level)


cdef struct Candidate:
    double score
    uint32_t id


cdef struct Heap:
    Candidate *items
    uint64_t n
    uint64_t negative, nan  # scores that were refused


cdef void _push(Heap *heap, double score, uint32_t block) noexcept nogil:
    cdef uint64_t at = heap.n
    cdef uint64_t up
    heap.n += 1
    while at:
        up = (at - 1) // 2
        if heap.items[up].score >= score:
            break
        heap.items[at] = heap.items[up]
        at = up
    heap.items[at].score = score
    heap.items[at].id = block


cdef uint32_t _pop(Heap *heap) noexcept nogil:
    cdef uint32_t best = heap.items[0].id
    cdef Candidate last
    cdef uint64_t at = 0
    cdef uint64_t down
    heap.n -= 1
    last = heap.items[heap.n]
    while True:
        down = 2 * at + 1
        if down >= heap.n:
            break
        if down + 1 < heap.n and heap.items[down + 1].score > heap.items[down].score:
            down += 1
        if heap.items[down].score <= last.score:
            break
        heap.items[at] = heap.items[down]
        at = down
    heap.items[at] = last
    return best


cdef uint32_t _newest(const kvshm_block_record *table, uint64_t n) noexcept nogil:
    """The tick that ages count from: the youngest stamp. Stamps wrap, so by distance."""
    cdef uint32_t newest = read32(&table[0].stamp)
    cdef uint32_t stamp
    cdef uint64_t i
    for i in range(n):
        stamp = read32(&table[i].stamp)
        if <uint32_t>(stamp - newest) < 0x80000000u:
            newest = stamp
    return newest


cdef void _consider(Heap *heap, const kvshm_block_record *b, uint32_t now, score_fn scorer,
                    const double *scores, uint32_t block) noexcept nogil:
    cdef double score = scores[block] if scores is not NULL else scorer(b, now)
    if score >= 0:
        _push(heap, score, block)
    elif score < 0:
        heap.negative += 1
    else:
        heap.nan += 1


cdef bint _is_marked(const kvshm_block_record *table, const uint64_t *marked,
                     uint32_t block) noexcept nogil:
    return marked is not NULL and marked[block] == read64(&table[block].seq)


cdef uint64_t _choose(const kvshm_block_record *table, uint64_t blocks, uint64_t wanted,
                      score_fn scorer, const double *scores, const uint64_t *marked,
                      uint32_t *children, Heap *heap, kvshm_handle *out) noexcept nogil:
    """Up to `wanted` victims, best first, no block before its cached children. Those that stand
    among the marks already (marked[block] is their life) count as gone."""
    cdef uint32_t now = _newest(table, blocks)
    cdef uint32_t x, p
    cdef uint64_t got = 0
    cdef uint64_t i
    for i in range(blocks):
        if word_ready(read64(&table[i].word)) and not _is_marked(table, marked, <uint32_t>i):
            p = parent_of(table, blocks, <uint32_t>i)
            if p != KVSHM_NONE:
                children[p] += 1
    for i in range(blocks):
        if (children[i] == 0 and inactive(&table[i])
                and not _is_marked(table, marked, <uint32_t>i)):
            _consider(heap, &table[i], now, scorer, scores, <uint32_t>i)
    while got < wanted and heap.n:
        x = _pop(heap)
        out[got].id = x
        out[got].seq = read64(&table[x].seq)
        out[got].zero = 0
        got += 1
        p = parent_of(table, blocks, x)
        if p == KVSHM_NONE or children[p] == 0:  # its link changed meanwhile
            continue
        children[p] -= 1
        if children[p] == 0 and inactive(&table[p]) and not _is_marked(table, marked, p):
            _consider(heap, &table[p], now, scorer, scores, p)
    return got


cdef int64_t mark(Attachment arena, uint64_t n, score_fn scorer, const double *scores,
                  uint64_t *marked, uint32_t *out) except -1:
    cdef uint64_t refused[2]
    return _mark(arena, n, scorer, scores, marked, out, refused)


cdef int64_t _mark(Attachment arena, uint64_t n, score_fn scorer, const double *scores,
                   uint64_t *marked, uint32_t *out, uint64_t *refused) except -1:
    """refused: how many negative scores and how many NaN there were."""
    cdef BlockTable table = open_table(arena)
    cdef uint64_t blocks = table.n
    cdef uint64_t room = min(n, min(blocks, <uint64_t>RING))
    cdef uint32_t *children = <uint32_t *>PyMem_RawCalloc(blocks, sizeof(uint32_t))
    cdef kvshm_handle *victims = <kvshm_handle *>PyMem_RawMalloc(
        (room or 1) * sizeof(kvshm_handle))
    cdef Heap heap
    cdef int64_t rc = 0
    cdef int64_t i
    heap.n = heap.negative = heap.nan = 0
    heap.items = <Candidate *>PyMem_RawMalloc(blocks * sizeof(Candidate))
    try:
        if children is NULL or victims is NULL or heap.items is NULL:
            raise MemoryError()
        if room:
            with nogil:
                room = _choose(table.records, blocks, room, scorer, scores, marked, children,
                               &heap, victims)
                rc = kvshm_mark_victims(arena.ptr, victims, <uint32_t>room)
                for i in range(rc):
                    if out is not NULL:
                        out[i] = victims[i].id
                    if marked is not NULL:
                        marked[victims[i].id] = victims[i].seq
    finally:
        PyMem_RawFree(heap.items)
        PyMem_RawFree(victims)
        PyMem_RawFree(children)
    refused[0], refused[1] = heap.negative, heap.nan
    if rc < 0:
        fail(rc, f"mark {room} victims")
    return rc


_SCORERS = ("lru", "lfu", "freqage")


cdef score_fn _scorer(object policy) except *:
    if policy == "lru":
        return by_age
    if policy == "lfu":
        return by_frequency
    if policy == "freqage":
        return by_freqage
    if isinstance(policy, Scorer):
        return (<Scorer>policy).function
    raise InvalidArgument(
        f"scorer: expected a function, a Scorer or one of {_SCORERS}, got {policy!r}")


def mark_new(Attachment arena not None, n, scorer, marked):
    """As mark_victims, but not what is marked already: (ids that were marked now, in order; how
    many negative scores there were; how many NaN).

    marked: uint64, shape (arena.blocks,), life numbers: read, and written for what is marked.
    """
    cdef uint64_t refused[2]
    cdef Bytes numbers, lives, room
    cdef const double *scores = NULL
    cdef uint64_t *c_marked = NULL
    cdef score_fn function = NULL
    cdef uint32_t now
    cdef BlockTable live
    cdef int64_t count
    arena.alive()
    if n < 0:
        raise InvalidArgument(f"mark {n} victims")
    ids = np.empty(min(n, RING), np.uint32)
    room = as_bytes(ids, True)
    if marked is not None:
        if marked.dtype != np.uint64 or marked.shape != (arena.blocks,):
            raise wrong_size("marked: life numbers", arena.blocks, marked.size)
        lives = as_bytes(marked, True)
        c_marked = <uint64_t *>lives.ptr
    if callable(scorer):
        live = open_table(arena)
        with nogil:
            now = _newest(live.records, live.n)
        table = np.frombuffer(live, BLOCK_DTYPE).copy()
        given = np.ascontiguousarray(scorer(table, now), np.float64)
        if given.shape != table.shape:
            raise wrong_size("scorer: numbers", table.size, given.size)
        numbers = as_bytes(given, False)
        scores = <const double *>numbers.ptr
    else:
        function = _scorer(scorer)
    count = _mark(arena, n, function, scores, c_marked, <uint32_t *>room.ptr, refused)
    return ids[:count], refused[0], refused[1]


def mark_victims(Attachment arena not None, n, scorer="lru"):
    """Mark up to n inactive blocks for the next evictions; returns how many were marked.

    scorer: "lru", "lfu", "freqage", a Scorer, or a function score(table, now) -> n floats. `table`
    is a snapshot of all blocks, an array of BLOCK_DTYPE, and now - table["stamp"] (mod 2^32) their
    ages; the greatest goes first, a negative number or NaN never. A run marks up to 8192.
    """
    return len(mark_new(arena, n, scorer, None)[0])


def marks_left(Attachment arena not None):
    """Marks in the ring that no allocation has taken yet, stale ones included."""
    cdef int64_t n
    arena.alive()
    n = kvshm_marks_left(arena.ptr)
    if n < 0:
        fail(n, "marks")
    return n


cdef uint64_t _count_vacant(const kvshm_block_record *table, uint64_t n) noexcept nogil:
    cdef uint64_t i
    cdef uint64_t found = 0
    for i in range(n):
        found += vacant(&table[i])
    return found


def free_blocks(Attachment arena not None):
    """Number of free blocks now, by a walk over all."""
    cdef const kvshm_block_record *table
    cdef uint64_t n = 0, found = 0
    arena.alive()
    table = kvshm_block_table(arena.ptr, &n)
    if table is not NULL:
        with nogil:
            found = _count_vacant(table, n)
    return found
