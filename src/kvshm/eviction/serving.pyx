# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Requests of a recorded load, served from a real arena without computing anything.

For each: hold the longest prefix, hold what is present behind a gap, allocate and register what is
missing, give everything back. No Python per block or request.
"""
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.errno cimport ETIMEDOUT
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_ENOSPACE, KVSHM_NO_TOUCH, KVSHM_NONE, KVSHM_REJECT, kvshm_abort,
                           kvshm_allocate, kvshm_arena, kvshm_drop, kvshm_fill_options,
                           kvshm_fill_options_init, kvshm_handle, kvshm_handle_of, kvshm_key,
                           kvshm_lease, kvshm_match, kvshm_match_scattered, kvshm_match_with,
                           kvshm_presence, kvshm_register, kvshm_release)
from kvshm.convert cimport Bytes, Keys, as_bytes, as_keys, fail

import numpy as np

from kvshm.errors import InvalidArgument

cdef enum:
    WAIT_MS = 20  # for room that other processes hold, before a request keeps less than it has


cdef struct Served:
    uint32_t *ids       # of the present blocks, or KVSHM_NONE
    kvshm_handle *mine  # what was filled
    uint32_t filled
    uint64_t refused    # blocks for which there was no room


cdef int64_t _fill(kvshm_arena *a, const kvshm_key *keys, uint32_t n, uint32_t parent,
                   kvshm_fill_options *options, Served *s) noexcept nogil:
    """A run of missing blocks below `parent`: as many from its start as there is room for."""
    cdef kvshm_handle *out = s.mine + s.filled
    cdef uint32_t wanted = n
    cdef int64_t rc
    options.parent.id = KVSHM_NONE
    options.parent.seq = 0
    if parent != KVSHM_NONE:
        kvshm_handle_of(a, parent, &options.parent)
    while wanted:
        rc = kvshm_allocate(a, wanted, keys, options, out, NULL, NULL)
        if rc != -KVSHM_ENOSPACE and rc != -ETIMEDOUT:
            break
        wanted //= 2
    s.refused += n - wanted
    if not wanted:
        return 0
    if rc < 0:
        return rc
    rc = kvshm_register(a, out, wanted, NULL, KVSHM_REJECT, out, NULL)
    if rc < wanted:
        kvshm_abort(a, out + max(rc, 0), wanted - <uint32_t>max(rc, 0))
    if rc > 0:
        s.filled += <uint32_t>rc
    return rc


cdef int64_t _serve(kvshm_arena *a, const kvshm_key *keys, uint32_t n,
                    kvshm_fill_options *options, Served *s) noexcept nogil:
    """The hits of one request. Whatever happens, nothing of it is held afterwards."""
    cdef kvshm_lease prefix = 0
    cdef kvshm_lease behind = 0
    cdef kvshm_lease whole = 0
    cdef int64_t hits, present
    cdef int64_t rc = 0
    cdef uint32_t i, run
    s.filled = 0
    hits = kvshm_match(a, keys, n, s.ids, &prefix)
    if hits < 0:
        return hits
    present = 0
    if hits < n:
        present = kvshm_match_scattered(a, keys + hits, n - <uint32_t>hits, 0, 0, s.ids + hits,
                                        &behind)
        rc = min(present, 0)
    i = <uint32_t>hits
    while rc >= 0 and i < n:
        run = 0
        while i + run < n and s.ids[i + run] == KVSHM_NONE:
            run += 1
        if run:
            rc = _fill(a, keys + i, run, s.ids[i - 1] if i else KVSHM_NONE, options, s)
            if rc < run:
                break  # what follows would hang in the air
            s.ids[i + run - 1] = s.mine[s.filled - 1].id
        i += run or 1
    if present > 0 and rc >= 0:
        # Links across the filled gaps, and one lease over the whole chain.
        kvshm_match_with(a, keys, n, KVSHM_NO_TOUCH, 0, s.ids, &whole, NULL)
        if prefix:
            kvshm_release(a, prefix)
        prefix = whole
    # The tail first: the head is to be the youngest.
    if s.filled:
        kvshm_drop(a, s.mine, s.filled)
    if behind:
        kvshm_release(a, behind)
    if prefix:
        kvshm_release(a, prefix)
    return hits if rc >= 0 else rc


def serve(Attachment arena not None, keys, bounds, hits, tenants=None):
    """Serve requests in order; returns how many blocks were not stored for want of room.

    keys: (n, 16) uint8; request i has keys[bounds[i]:bounds[i + 1]] (int64). hits: int32, one a
    request, is set to the length of its cached prefix. tenants: int64, whose each request is;
    None: nobody's. A request longer than the arena is cut.
    Errors of the arena are raised; the requests before are served, and nothing is held.
    """
    cdef Keys c_keys = as_keys(keys)
    cdef Bytes c_bounds, c_hits, c_tenants
    cdef const int64_t *whose = NULL
    cdef const int64_t *at
    cdef int32_t *out
    cdef int64_t requests = len(bounds) - 1
    cdef int64_t most, i, n
    cdef int64_t rc = 0
    cdef kvshm_fill_options options
    cdef Served s
    arena.alive()
    if bounds.dtype != np.int64 or hits.dtype != np.int32 or len(hits) != requests:
        raise InvalidArgument(f"serve: expected int64 bounds, and an int32 of hits for each of "
                              f"{requests} requests, got {len(hits)} {hits.dtype}")
    if requests < 1:
        return 0
    lengths = np.diff(bounds)
    if lengths.min() < 0 or bounds[0] < 0 or bounds[-1] > c_keys.n:
        raise InvalidArgument(f"serve: bounds: expected to rise within 0 to {c_keys.n}")
    if tenants is not None:
        if tenants.dtype != np.int64 or len(tenants) != requests or tenants.min() < 0:
            raise InvalidArgument(f"serve: tenants: expected {requests} int64 of 0 or more, got "
                                  f"{len(tenants)} {tenants.dtype}")
        c_tenants = as_bytes(np.minimum(tenants, 1 << 20), False)  # what is no row is refused
        whose = <const int64_t *>c_tenants.ptr
    c_bounds = as_bytes(bounds, False)
    c_hits = as_bytes(hits, True)
    at = <const int64_t *>c_bounds.ptr
    out = <int32_t *>c_hits.ptr
    most = min(<int64_t>lengths.max(), <int64_t>arena.blocks)
    s.refused = 0
    s.ids = <uint32_t *>PyMem_RawMalloc((most + 1) * sizeof(uint32_t))
    s.mine = <kvshm_handle *>PyMem_RawMalloc((most + 1) * sizeof(kvshm_handle))
    try:
        if s.ids is NULL or s.mine is NULL:
            raise MemoryError()
        options = kvshm_fill_options_init()
        options.timeout_ms = WAIT_MS
        with nogil:
            for i in range(requests):
                n = min(at[i + 1] - at[i], most)
                if whose is not NULL:
                    options.tenant = <uint32_t>whose[i]
                rc = 0 if n == 0 else _serve(arena.ptr, c_keys.ptr + at[i], <uint32_t>n, &options,
                                             &s)
                if rc < 0:
                    break
                out[i] = <int32_t>rc
        if rc < 0:
            fail(rc, f"request {i} of {requests}")
    finally:
        PyMem_RawFree(s.ids)
        PyMem_RawFree(s.mine)
    return s.refused


def prefix(Attachment arena not None, keys):
    """How many leading keys are present: a guess by the time you read it. Holds and touches
    nothing."""
    cdef Keys c_keys = as_keys(keys)
    cdef uint8_t *mask
    cdef uint32_t i = 0
    cdef int64_t rc
    arena.alive()
    mask = <uint8_t *>PyMem_RawMalloc(c_keys.n + 1)
    if mask is NULL:
        raise MemoryError()
    try:
        with nogil:
            rc = kvshm_presence(arena.ptr, c_keys.ptr, c_keys.n, mask)
            while rc > 0 and i < c_keys.n and mask[i] & 1:
                i += 1
        if rc < 0:
            fail(rc, "look for a prefix")
    finally:
        PyMem_RawFree(mask)
    return i
