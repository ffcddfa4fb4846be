# cython: language_level=3, freethreading_compatible=True, auto_pickle=False, cdivision=True
# SPDX-License-Identifier: Apache-2.0
"""References for replay: what exact LRU, ARC and Belady's choice would hit, without an arena.

One request after the other, each a chain of blocks. Its hits are the longest run of leading blocks
that are there; then all its blocks are in the cache, and were used tail first, so that the head is
the youngest. Blocks of the request itself are no victims. What is longer than the cache is cut.

Pure functions of their arguments, without the GIL; any thread may call them.
"""
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kvshm.convert cimport Bytes, as_bytes

import numpy as np

from kvshm.errors import InvalidArgument

cdef enum:
    ABSENT = 0
    T1 = 1  # seen once lately, of ARC; for LRU simply: it is there
    T2 = 2
    B1 = 3  # remembered after it went
    B2 = 4
    WANTED = 8  # a bit: of the present request


cdef struct Lists:
    # Doubly linked, over the blocks and one head a list behind them: list k's head is `blocks` + k.
    int32_t *newer
    int32_t *older
    uint8_t *where
    int64_t *size
    int32_t blocks


cdef inline void _take_out(Lists *s, int32_t x) noexcept nogil:
    s.older[s.newer[x]] = s.older[x]
    s.newer[s.older[x]] = s.newer[x]
    s.size[s.where[x] & 7] -= 1


cdef inline void _put_in(Lists *s, int32_t x, uint8_t which) noexcept nogil:
    """As the newest of a list."""
    cdef int32_t head = s.blocks + which
    s.older[x] = s.older[head]
    s.newer[x] = head
    s.newer[s.older[head]] = x
    s.older[head] = x
    s.where[x] = which | (s.where[x] & WANTED)
    s.size[which] += 1


cdef inline int32_t _oldest(Lists *s, uint8_t which) noexcept nogil:
    """That is not of the present request; the list's head if there is none."""
    cdef int32_t x = s.newer[s.blocks + which]
    while x < s.blocks and s.where[x] & WANTED:
        x = s.newer[x]
    return x


cdef inline void _forget(Lists *s, uint8_t which) noexcept nogil:
    """The oldest goes; a mere memory also if the request wants the block."""
    cdef int32_t x = _oldest(s, which) if which <= T2 else s.newer[s.blocks + which]
    if x < s.blocks:
        _take_out(s, x)
        s.where[x] &= WANTED


cdef inline bint _is_here(uint8_t where) noexcept nogil:
    return where & 7 == T1 or where & 7 == T2


cdef int64_t _begin(Lists *s, const int32_t *ids, int64_t n, int32_t *hits) noexcept nogil:
    """Counts the hits, marks the request's blocks; returns how many are not there."""
    cdef int64_t i = 0
    cdef int64_t missing = 0
    while i < n and _is_here(s.where[ids[i]]):
        i += 1
    hits[0] = <int32_t>i
    for i in range(n):
        if not s.where[ids[i]] & WANTED:
            missing += not _is_here(s.where[ids[i]])
            s.where[ids[i]] |= WANTED
    return missing


cdef void _lru(Lists *s, const int32_t *ids, int64_t n, int64_t capacity,
               int32_t *hits) noexcept nogil:
    cdef int64_t missing = _begin(s, ids, n, hits)
    cdef int64_t i
    cdef int32_t x
    while s.size[T1] + missing > capacity:
        _forget(s, T1)
    for i in range(n - 1, -1, -1):
        x = ids[i]
        if s.where[x] & WANTED:
            if _is_here(s.where[x]):
                _take_out(s, x)
            _put_in(s, x, T1)
            s.where[x] = T1


cdef void _replace(Lists *s, double target, bint from_b2) noexcept nogil:
    """A victim from T1 or T2, which is remembered in B1 or B2."""
    cdef uint8_t which = T1
    cdef int32_t x
    if s.size[T1] == 0 or not (s.size[T1] > target or (from_b2 and s.size[T1] == target)):
        which = T2
    x = _oldest(s, which)
    if x >= s.blocks:  # all of it is the request's
        which = T1 + T2 - which
        x = _oldest(s, which)
        if x >= s.blocks:
            return
    _take_out(s, x)
    _put_in(s, x, B1 if which == T1 else B2)


cdef double _arc_touch(Lists *s, int32_t x, int64_t c, double target) noexcept nogil:
    cdef uint8_t where = s.where[x] & 7
    cdef bint full = s.size[T1] + s.size[T2] >= c
    cdef double ratio
    if where == T1 or where == T2:
        _take_out(s, x)
        _put_in(s, x, T2)
        return target
    if where == B1 or where == B2:
        if where == B1:
            ratio = <double>s.size[B2] / s.size[B1]
            target = min(<double>c, target + max(1.0, ratio))
        else:
            ratio = <double>s.size[B1] / s.size[B2]
            target = max(0.0, target - max(1.0, ratio))
        if full:
            _replace(s, target, where == B2)
        _take_out(s, x)
        _put_in(s, x, T2)
        return target
    if s.size[T1] + s.size[B1] >= c:
        if s.size[B1] > 0:
            _forget(s, B1)
            if full:
                _replace(s, target, False)
        elif full:
            _forget(s, T1)
    elif s.size[T1] + s.size[T2] + s.size[B1] + s.size[B2] >= c:
        if s.size[T1] + s.size[T2] + s.size[B1] + s.size[B2] >= 2 * c:
            _forget(s, B2)
        if full:
            _replace(s, target, False)
    _put_in(s, x, T1)
    return target


cdef double _arc(Lists *s, const int32_t *ids, int64_t n, int64_t capacity, double target,
                 int32_t *hits) noexcept nogil:
    cdef int64_t i
    _begin(s, ids, n, hits)
    for i in range(n - 1, -1, -1):
        target = _arc_touch(s, ids[i], capacity, target)
    for i in range(n):
        s.where[ids[i]] &= 7
    return target


cdef struct Heap:
    # The latest next use on top, of those the deepest; place[x] is where x stands, or -1.
    uint64_t *when
    int32_t *items
    int32_t *place
    int32_t n


cdef inline void _set(Heap *h, int32_t at, int32_t x) noexcept nogil:
    h.items[at] = x
    h.place[x] = at


cdef void _rise(Heap *h, int32_t at) noexcept nogil:
    cdef int32_t x = h.items[at]
    cdef int32_t up
    while at:
        up = (at - 1) // 2
        if h.when[h.items[up]] >= h.when[x]:
            break
        _set(h, at, h.items[up])
        at = up
    _set(h, at, x)


cdef void _drop_top(Heap *h) noexcept nogil:
    cdef int32_t at = 0
    cdef int32_t x, down
    h.place[h.items[0]] = -1
    h.n -= 1
    if not h.n:
        return
    x = h.items[h.n]
    while True:
        down = 2 * at + 1
        if down >= h.n:
            break
        if down + 1 < h.n and h.when[h.items[down + 1]] > h.when[h.items[down]]:
            down += 1
        if h.when[h.items[down]] <= h.when[x]:
            break
        _set(h, at, h.items[down])
        at = down
    _set(h, at, x)


cdef void _belady(Heap *h, const int32_t *ids, const int64_t *next_use, int64_t n,
                  int64_t capacity, int32_t *hits) noexcept nogil:
    cdef int64_t i = 0
    cdef int32_t x
    while i < n and h.place[ids[i]] >= 0:
        i += 1
    hits[0] = <int32_t>i
    for i in range(n):
        x = ids[i]
        # A block that is there has its use now, so its key only grows.
        h.when[x] = <uint64_t>next_use[i] << 32 | <uint64_t>i
        if h.place[x] < 0:
            h.n += 1
            h.items[h.n - 1] = x
            _rise(h, h.n - 1)
        else:
            _rise(h, h.place[x])
    while h.n > capacity:
        _drop_top(h)


cdef void _next_uses(const int32_t *ids, const int64_t *bounds, int64_t requests, int64_t *last,
                     int64_t *out) noexcept nogil:
    """For each access the request that uses its block next, or 2^31."""
    cdef int64_t r, i
    for r in range(requests - 1, -1, -1):
        for i in range(bounds[r], bounds[r + 1]):
            out[i] = last[ids[i]] if last[ids[i]] else <int64_t>1 << 31
        for i in range(bounds[r], bounds[r + 1]):
            last[ids[i]] = r


cdef void *_room(size_t n, size_t size) except NULL:
    cdef void *p = PyMem_RawCalloc(n, size)
    if p is NULL:
        raise MemoryError()
    return p


cdef class _Load:
    """The arguments, checked."""
    cdef const int32_t *ids
    cdef const int64_t *bounds
    cdef int64_t requests, capacity
    cdef int32_t blocks
    cdef int32_t *hits
    cdef object result
    cdef tuple views

    def __init__(self, ids, bounds, capacity):
        cdef Bytes b
        if ids.dtype != np.int32 or bounds.dtype != np.int64 or len(bounds) < 1:
            raise InvalidArgument(f"expected int32 ids and int64 bounds, got {ids.dtype} and "
                                  f"{bounds.dtype}")
        if (np.diff(bounds) < 0).any() or bounds[0] != 0 or bounds[-1] > len(ids):
            raise InvalidArgument(f"bounds: expected to rise from 0 to at most {len(ids)}")
        if len(ids) and ids.min() < 0:
            raise InvalidArgument("ids: expected 0, 1, 2 ...")
        if not 1 <= capacity < 1 << 31 or len(bounds) >= 1 << 31:
            raise InvalidArgument(f"capacity: {capacity} blocks for {len(bounds) - 1} requests")
        self.requests = len(bounds) - 1
        self.capacity = capacity
        self.blocks = int(ids.max()) + 1 if len(ids) else 0
        self.result = np.zeros(self.requests, np.int32)
        self.views = (as_bytes(np.ascontiguousarray(ids), False),
                      as_bytes(np.ascontiguousarray(bounds), False), as_bytes(self.result, True))
        b = self.views[0]
        self.ids = <const int32_t *>b.ptr
        b = self.views[1]
        self.bounds = <const int64_t *>b.ptr
        b = self.views[2]
        self.hits = <int32_t *>b.ptr


cdef object _by_lists(_Load load, bint arc):
    cdef Lists s
    cdef int64_t r, at, n
    cdef int64_t sizes[5]
    cdef int32_t k
    cdef double target = 0
    s.newer = s.older = NULL
    s.where = NULL
    s.size = sizes
    s.blocks = load.blocks
    try:
        s.newer = <int32_t *>_room(load.blocks + 5, sizeof(int32_t))
        s.older = <int32_t *>_room(load.blocks + 5, sizeof(int32_t))
        s.where = <uint8_t *>_room(load.blocks + 5, 1)
        for k in range(5):
            sizes[k] = 0
            s.newer[s.blocks + k] = s.older[s.blocks + k] = s.blocks + k
        with nogil:
            for r in range(load.requests):
                at = load.bounds[r]
                n = min(load.bounds[r + 1] - at, load.capacity)
                if arc:
                    target = _arc(&s, load.ids + at, n, load.capacity, target, load.hits + r)
                else:
                    _lru(&s, load.ids + at, n, load.capacity, load.hits + r)
    finally:
        PyMem_RawFree(s.newer)
        PyMem_RawFree(s.older)
        PyMem_RawFree(s.where)
    return load.result


def exact_lru(ids, bounds, capacity):
    """Hits of each request, int32, of a cache of `capacity` blocks whose longest unused one goes.

    ids: int32, small numbers from 0 on. bounds: int64; request i is ids[bounds[i]:bounds[i + 1]].
    """
    return _by_lists(_Load(ids, bounds, capacity), False)


def exact_arc(ids, bounds, capacity):
    """As exact_lru, by ARC (Megiddo and Modha): two lists and the memory of what left each."""
    return _by_lists(_Load(ids, bounds, capacity), True)


def exact_belady(ids, bounds, capacity):
    """As exact_lru, with the future known: the block that is used last goes, or does not come in.

    Of equal ones the deepest goes first. An ancestor is never used later than its descendants, so
    no chain loses its middle, and no policy has more hits than this.
    """
    cdef _Load load = _Load(ids, bounds, capacity)
    cdef Heap h
    cdef int64_t r, at
    cdef int64_t *last = NULL
    cdef int64_t *next_use = NULL
    cdef int32_t x
    cdef size_t blocks = load.blocks
    h.when = NULL
    h.items = h.place = NULL
    h.n = 0
    try:
        last = <int64_t *>_room(blocks + 1, sizeof(int64_t))
        next_use = <int64_t *>_room(len(ids) + 1, sizeof(int64_t))
        h.when = <uint64_t *>_room(blocks + 1, sizeof(uint64_t))
        h.items = <int32_t *>_room(blocks + 1, sizeof(int32_t))
        h.place = <int32_t *>_room(blocks + 1, sizeof(int32_t))
        with nogil:
            for x in range(load.blocks):
                h.place[x] = -1
            _next_uses(load.ids, load.bounds, load.requests, last, next_use)
            for r in range(load.requests):
                at = load.bounds[r]
                _belady(&h, load.ids + at, next_use + at, load.bounds[r + 1] - at, load.capacity,
                        load.hits + r)
    finally:
        PyMem_RawFree(last)
        PyMem_RawFree(next_use)
        PyMem_RawFree(h.when)
        PyMem_RawFree(h.items)
        PyMem_RawFree(h.place)
    return load.result
