# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""The decision for one request: what is reused, what is awaited, what is computed.

Waiting or computing. Where the first missing block is being computed by somebody else, waiting
for it saves computing it and the run of blocks behind it that is under way, too. How long that will
take is not known. So the wait lasts, since the last block that became ready, at most as long as
computing the rest of the run would: then whatever the truth is, the request is served in at most
twice the best time (the ski-rental argument), and a stuck worker costs no more than that.
"""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport ENOENT, ETIMEDOUT
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from kvshm.ckvshm cimport (KVSHM_EPENDING, KVSHM_NO_TOUCH, kvshm_acquire, kvshm_arena,
                           kvshm_block_record, kvshm_block_table, kvshm_drop, kvshm_handle,
                           kvshm_key, kvshm_wait)
from kvshm.convert cimport as_handle, as_keys, deadline_in, fail, now
from kvshm.core cimport Arena
from kvshm.lease cimport Lease
from kvshm.words cimport inactive, vacant

from kvshm.errors import InvalidArgument
from kvshm.records import Presence

cdef object _PRIVATE = object()
_HERE = int(Presence.G2 | Presence.FILLING)
cdef enum:
    MAX_RUN = 256  # blocks under way that are counted; the limit on waiting ends before that
cdef double SLICE = 0.1
cdef double COMPUTE = 0.005


cdef uint32_t _run_under_way(kvshm_arena *a, const kvshm_key *keys, uint32_t n) noexcept nogil:
    """How many keys from the first on are being filled, or were finished meanwhile."""
    cdef kvshm_handle h
    cdef uint32_t i
    cdef int rc
    for i in range(n if n < MAX_RUN else MAX_RUN):
        rc = kvshm_acquire(a, <const uint8_t *>&keys[i], KVSHM_NO_TOUCH, &h)
        if rc == 0:
            kvshm_drop(a, &h, 1)
        elif rc != -KVSHM_EPENDING:
            return i
    return n if n < MAX_RUN else MAX_RUN


cdef bint _room_for(const kvshm_block_record *table, uint64_t blocks, uint64_t wanted,
                    uint64_t start) noexcept nogil:
    """Whether that many blocks are free or evictable; looks no further than it must."""
    cdef uint64_t i, at
    cdef uint64_t found = 0
    if wanted == 0:
        return True
    for i in range(blocks):
        at = (start + i) % blocks
        if vacant(&table[at]) or inactive(&table[at]):
            found += 1
            if found >= wanted:
                return True
    return False


@cython.final
cdef class MatchPlan:
    """What plan() decided. Its lease holds the blocks to reuse until release().

    lease: the run to reuse. reused_blocks, reused_tokens, compute_tokens: how far it goes.
    tokens, block_tokens, keys: the request. reason: "hit" (all that may be reused is), "partial",
    "miss". pending, pending_blocks: the fill that the first missing key is in all the same, and the
    length of that run: the decision was to compute it anyway. states: for each key behind the run,
    uint8 as Arena.presence: 0 is to be computed; 8, somebody else is at it; 1, present behind a
    gap; 2, on disk (a plan does not load: see Arena.match). fits: free and evictable blocks suffice
    for the rest (a guess). waited, waits: seconds spent on others' fills, and how many were
    awaited.
    """

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError("a MatchPlan comes from plan()")

    @property
    def compute_tokens(self):
        """Tokens of the request that have to be computed."""
        return self.tokens - self.reused_tokens

    @property
    def missing(self):
        """Indices of the keys that nobody has in memory and nobody computes: (k,) int64."""
        return (self.states & _HERE == 0).nonzero()[0] + self.reused_blocks

    def allocate(self, **options):
        """A Fill for all keys behind the run, chained to it; `options` as for Arena.allocate."""
        rest = self.keys[self.reused_blocks:]
        return self.arena.allocate(len(rest), keys=rest, after=self.lease, **options)

    def release(self):
        """Give the reused blocks back. A second call does nothing."""
        self.lease.release()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.release()

    def __repr__(self):
        return (f"<kvshm.MatchPlan {self.reason}: {self.reused_tokens} of {self.tokens} tokens in "
                f"{self.reused_blocks} blocks, waited {self.waited * 1000:.1f} ms>")

    cdef int seek(self, bint touch, str tag) except -1:
        """Match as far as it goes; what is held already is not touched again."""
        cdef Lease before = self.lease
        if before is None:
            self.lease = self.arena.find(self.keys, touch, tag)
            return 0
        if touch:
            self.arena.find(self.keys[len(before):], True, tag).release()
        self.lease = self.arena.find(self.keys, False, tag)
        before.release()
        return 0

    cdef int await_others(self, double limit, double compute, bint touch, str tag) except -1:
        cdef double began = now()
        cdef double progress = began
        cdef double until
        cdef kvshm_handle h
        cdef uint32_t run, ms
        cdef int rc = 0
        while self.lease.pending is not None:
            h = as_handle(self.lease.pending)
            with nogil:
                run = _run_under_way(self.arena.ptr, self.c_keys.ptr + self.lease.n,
                                     self.c_keys.n - self.lease.n)
            until = min(limit, progress + (run or 1) * compute)
            self.waits += until > now()
            rc = -ETIMEDOUT
            while rc == -ETIMEDOUT and now() < until:
                ms = <uint32_t>(min(SLICE, until - now()) * 1000) + 1
                with nogil:
                    rc = kvshm_wait(self.arena.ptr, h, ms)
                PyErr_CheckSignals()
                self.arena.alive()
            self.waited = now() - began
            if rc == -ETIMEDOUT:
                self.pending, self.pending_blocks = self.lease.pending, run
                return 0
            if rc < 0 and rc != -ENOENT:
                fail(rc, f"wait for block {h.id}")
            if rc == 0:
                progress = now()
            self.seek(touch, tag)
        return 0

    cdef int settle(self, bint keep_last) except -1:
        """How much of the run to use, what the rest needs, and whether there is room for it."""
        cdef const kvshm_block_record *table
        cdef uint64_t blocks = 0, wanted
        cdef Py_ssize_t most = self.c_keys.n
        if keep_last:
            most = min(most, max(0, self.tokens - 1) // self.block_tokens)
        self.reason = ("hit" if self.lease.n >= most else "partial" if self.lease.n else "miss")
        if self.lease.n > most:
            self.lease.trim(most)
        self.reused_blocks = self.lease.n
        self.reused_tokens = min(self.reused_blocks * self.block_tokens, self.tokens)
        rest = self.keys[self.reused_blocks:]
        self.states = self.arena.presence(rest)
        wanted = (self.tokens + self.block_tokens - 1) // self.block_tokens - self.reused_blocks
        table = kvshm_block_table(self.arena.ptr, &blocks)
        if table is not NULL:
            with nogil:
                self.fits = _room_for(table, blocks, wanted, self.arena.slot * blocks // 48)
        return 0


def plan(Arena arena not None, keys, tokens=None, *, wait=10.0, compute_ms=COMPUTE * 1000,
         keep_last=True, touch=True, tag="", block_tokens=None):
    """Decide one request: a MatchPlan.

    keys: of its full blocks, (n, 16) uint8. tokens: how many it has (or they themselves); default:
    n full blocks. wait: limit in seconds on waiting for what others compute; 0: never wait.
    compute_ms: what computing one block costs here; see the module for how it bounds the wait.
    keep_last: leave at least one token to compute, as logits need one. touch, tag: as for match.
    block_tokens: needed only where the arena was opened without an identity.
    Signals are handled at least every 100 ms. Raises what Arena.match and Arena.wait raise.
    """
    cdef MatchPlan self = MatchPlan.__new__(MatchPlan, _PRIVATE)
    cdef double limit = deadline_in(wait)
    cdef double compute = compute_ms / 1000
    self.arena = arena
    if block_tokens is None:
        if arena.identity is None:
            raise InvalidArgument("plan: the arena has no identity; give block_tokens")
        block_tokens = arena.identity.block_tokens
    self.block_tokens = block_tokens
    if self.block_tokens < 1 or compute < 0:
        raise InvalidArgument(f"plan: {block_tokens=}, {compute_ms=}")
    self.keys = keys
    self.c_keys = as_keys(keys)
    self.tokens = (self.c_keys.n * self.block_tokens if tokens is None
                   else tokens if isinstance(tokens, int) else len(tokens))
    if self.tokens // self.block_tokens < self.c_keys.n:
        raise InvalidArgument(
            f"plan: {self.c_keys.n} keys, but {self.tokens} tokens are "
            f"{self.tokens // self.block_tokens} full blocks of {self.block_tokens}")
    self.seek(touch, tag)
    if wait > 0:
        self.await_others(limit, compute, touch, tag)
    else:
        self.pending = self.lease.pending
        self.pending_blocks = self.lease.pending is not None
    self.settle(keep_last)
    return self
