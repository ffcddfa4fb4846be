# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Holds of n blocks as one Python object: what match, pin and register return."""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.errno cimport ETIMEDOUT
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_ECLOSED, KVSHM_EFORKED, KVSHM_NONE, kvshm_copy_out, kvshm_drop,
                           kvshm_handle, kvshm_handle_of, kvshm_lease, kvshm_lease_make,
                           kvshm_lease_trim, kvshm_load, kvshm_release)
from kvshm.convert cimport (Bytes, Handles, as_bytes, as_tag, deadline_in, fail, from_handle,
                            handle_array, new_handles, now, slice_ms)
from kvshm.loads cimport Load, new_load
from kvshm.views cimport view_held

import numpy as np

from kvshm.errors import Closed, InvalidArgument, Misuse
from kvshm.records import LoadState

cdef object _PRIVATE = object()


@cython.final
@cython.no_gc_clear
cdef class Lease:
    """n blocks, held until release() or the end of a with block; len() is n.

    A lease of match_scattered has an entry for every key asked for, NONE where it was not found.
    Any thread may use and release it. What dies without being released is released then.

    One of match(load=True) grows: n is the prefix that was held at the last look, which creation,
    `loading`, wait() and loaded() are. What it holds can be used at once, whatever is on its way.
    When all loads have ended it is a lease like any other, of what could be had. A forked child
    may drop it, no more.
    """

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError("a Lease comes from Arena.match(), .pin() or Fill.register()")
        self.released_ = True

    cdef int held(self) except -1:
        if self.released_:
            raise Closed("this lease was released")
        return 0

    @property
    def released(self):
        """True when its blocks were given back."""
        return self.released_

    @property
    def ids(self):
        """Block ids, uint32 of shape (n,), read-only; NONE (0xffffffff) for a miss."""
        if self.ids_ is None:
            ids = np.empty(self.n, np.uint32)
            if self.n:
                memcpy(as_bytes(ids, True).ptr, self.blocks, self.n * sizeof(uint32_t))
            ids.flags.writeable = False
            self.ids_ = ids
        return self.ids_

    @property
    def hits(self):
        """Number of blocks held; less than len() after a scattered match with misses."""
        cdef uint32_t i
        cdef Py_ssize_t found = 0
        for i in range(self.n):
            found += self.blocks[i] != KVSHM_NONE
        return found

    # Loads from the disk

    cdef int look(self) except -1:
        """Take note of what has come since the last look."""
        cdef Load load = self.load
        cdef int64_t held
        # A forked child has the parent's locks, as they were.
        if load is None or self.arena.is_inherited() or not load.enter():
            return 0
        try:
            with load.lock:
                if self.load is load:
                    held = load.look(self.blocks)
                    self.states_ = load.states
                    if load.under_way:
                        self.n = <uint32_t>held
                    else:
                        self.settle(load, held)
                    self.ids_ = None
        finally:
            load.leave()
        return 0

    cdef int settle(self, Load load, int64_t held) except -1:
        """All loads have ended: a lease like any other."""
        cdef kvshm_lease token = 0
        cdef bint late
        held = load.settle(&token)
        with cython.critical_section(self):
            late = self.released_
            if not late:
                self.lease = token
            self.n = <uint32_t>held
            self.load = None
        load.drop()
        if late and token:  # released by another thread meanwhile
            with nogil:
                kvshm_release(self.arena.ptr, token)
        return 0

    @property
    def loading(self):
        """How many blocks are on their way from the disk; 0: all is here that will be."""
        cdef Load load
        self.look()
        load = self.load
        return 0 if load is None else load.under_way

    @property
    def promised(self):
        """The length that was found, in memory and on disk: what len() becomes if no load fails."""
        return self.promised_ if self.states_ is not None else self.n

    @property
    def states(self):
        """A kvshm.LoadState for each of the promised blocks at the last look (uint8, read-only);
        None if match() was not told to load."""
        return self.states_

    @property
    def failed(self):
        """Indices of the blocks whose loads have failed, at the last look. They are misses; so is
        what lies behind the first of them."""
        states = self.states_
        return [] if states is None else (states == LoadState.FAILED).nonzero()[0].tolist()

    def wait(self, timeout):
        """Until all loads have ended, well or not: True; len() is what is held now. False after
        `timeout` seconds; they go on. Closed: it was released meanwhile. Cancelled: see
        Arena.cancel_waits(). What is not loading needs no wait: True."""
        cdef double deadline = deadline_in(timeout)
        cdef Load load
        cdef int rc
        while True:
            self.held()
            load = self.load
            if load is None:
                return True
            self.arena.alive()
            if self.arena.is_inherited():
                fail(-KVSHM_EFORKED, "wait for a load")
            if not load.enter():
                continue  # released, or settled by another thread
            try:
                rc = load.wait(slice_ms(deadline))
            finally:
                load.leave()
            if rc < 0 and rc != -ETIMEDOUT:
                fail(rc, f"wait for {load.n} blocks")
            self.look()
            if rc < 0:
                PyErr_CheckSignals()
                if now() >= deadline:
                    return self.load is None and not self.released_

    async def loaded(self):
        """wait() for asyncio: returns len() when all loads have ended. Their time limit is the
        tier's; asyncio.timeout() sets a shorter one. When it is cancelled the loads go on."""
        cdef Load load
        from asyncio import get_running_loop

        loop = get_running_loop()
        while True:
            self.held()
            if self.arena.is_inherited():
                fail(-KVSHM_EFORKED, "wait for a load")
            self.look()
            load = self.load
            if load is None:
                self.held()
                return self.n
            waiter = (loop, loop.create_future())
            if not load.enter():
                continue
            try:
                load.listen(waiter)
            finally:
                load.leave()
            try:
                await waiter[1]
            finally:
                load.forget(waiter)

    cdef kvshm_handle handle_at(self, Py_ssize_t index) except *:
        cdef kvshm_handle h
        cdef int rc
        self.held()
        if index < 0:
            index += self.n
        if not 0 <= index < self.n:
            raise IndexError(f"block {index} of a lease of {self.n}")
        if self.blocks[index] == KVSHM_NONE:
            raise Misuse(f"key {index} was not found: there is no block")
        rc = kvshm_handle_of(self.arena.ptr, self.blocks[index], &h)
        if rc < 0:
            fail(rc, f"handle of block {self.blocks[index]}")
        return h

    def handle(self, Py_ssize_t index):
        """Handle of block `index`: (id, life number), which outlives the lease."""
        return from_handle(self.handle_at(index))

    @property
    def handles(self):
        """Handles of all blocks; None for a miss."""
        cdef uint32_t i
        self.held()
        return [None if self.blocks[i] == KVSHM_NONE else from_handle(self.handle_at(i))
                for i in range(self.n)]

    @property
    def handle_array(self):
        """The same in one array of kvshm.convert.HANDLE_DTYPE; Misuse after a match with misses."""
        cdef Handles found = new_handles(self.n)
        cdef uint32_t i
        cdef int rc = 0
        self.held()
        with nogil:
            for i in range(self.n):
                rc = kvshm_handle_of(self.arena.ptr, self.blocks[i], found.ptr + i)
                if rc < 0:
                    break
        if rc < 0:
            if self.hits != self.n:
                raise Misuse("a lease with misses has no array of handles")
            fail(rc, "handles of a lease")
        return handle_array(found.ptr, found.n)

    def view(self, Py_ssize_t index):
        """The bytes of block `index`, read-only, with a hold of their own."""
        return view_held(self.arena, self.handle_at(index))

    def copy_out(self, Py_ssize_t index, destination, Py_ssize_t offset=0):
        """Copy bytes of block `index`, from `offset` on, to fill `destination` (any writable
        buffer). Counted in the statistics as a copy. Raises InvalidArgument past the end."""
        cdef kvshm_handle h = self.handle_at(index)
        cdef Bytes data = as_bytes(destination, True)
        cdef int rc
        if offset < 0:
            raise InvalidArgument(f"offset {offset}")
        with nogil:
            rc = kvshm_copy_out(self.arena.ptr, h, offset, data.ptr, data.n)
        if rc < 0:
            fail(rc, f"copy out of block {h.id}")

    def trim(self, Py_ssize_t keep):
        """Give back the blocks from index `keep` on. Not for a scattered match."""
        cdef int rc
        self.held()
        if not 0 <= keep <= self.n:
            raise InvalidArgument(f"keep {keep} of {self.n} blocks")
        if self.hits != self.n:
            raise Misuse("a lease with misses cannot be trimmed")
        if self.load is not None:
            raise Misuse("a lease cannot be trimmed while blocks are loading: wait() first")
        if keep < self.n:
            with nogil:
                rc = kvshm_lease_trim(self.arena.ptr, self.lease, <uint32_t>keep)
            if rc < 0:
                fail(rc, "trim a lease")
        self.n = <uint32_t>keep
        self.ids_ = None

    def release(self):
        """Give all blocks back; Views keep theirs. A second call does nothing. Loads under way end
        by themselves, and what they bring stays in memory for others; those not begun are dropped.
        """
        cdef int rc = self.give_back()
        # Closing gave everything back already, and a forked child has nothing to give.
        if rc < 0 and rc != -KVSHM_ECLOSED and rc != -KVSHM_EFORKED:
            fail(rc, "release a lease")

    cdef int give_back(self) noexcept:
        cdef kvshm_lease lease
        cdef Load load
        cdef int rc = 0
        with cython.critical_section(self):
            lease, load = self.lease, self.load
            self.lease = 0
            self.load = None
            self.released_ = True
        if load is not None:
            load.drop()
        if lease:
            # Drops to nobody wake waiters, and may wait for another thread's drop: no GIL.
            with nogil:
                rc = kvshm_release(self.arena.ptr, lease)
        return rc

    def __dealloc__(self):
        if self.lease or self.load is not None:
            self.give_back()
        PyMem_Free(self.blocks)

    def __len__(self):
        return self.n

    def __bool__(self):
        return self.n > 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.release()

    def __repr__(self):
        state = "released" if self.released_ else f"{now() - self.taken_at:.3f} s old"
        tag = f" {self.tag!r}" if self.tag else ""
        load = f", {self.load.under_way} more loading" if self.load is not None else ""
        return f"<kvshm.Lease{tag} of {self.n} blocks{load}, {state}>"


cdef Lease new_lease(Attachment arena, object tag, uint32_t room):
    """An empty lease with room for `room` ids."""
    cdef Lease lease = Lease.__new__(Lease, _PRIVATE)
    lease.arena = arena
    lease.tag = tag if isinstance(tag, str) else str(tag)
    lease.blocks = <uint32_t *>PyMem_Malloc((room or 1) * sizeof(uint32_t))
    if lease.blocks is NULL:
        raise MemoryError()
    return lease


cdef Lease begin_lease(Lease lease, kvshm_lease token, uint32_t n):
    """It holds now: `n` ids stand in its array, `token` (0: none) gives them back."""
    cdef uint32_t *smaller
    lease.lease = token
    lease.n = n
    lease.released_ = False
    lease.taken_at = now()
    smaller = <uint32_t *>PyMem_Realloc(lease.blocks, (n or 1) * sizeof(uint32_t))
    if smaller is not NULL:
        lease.blocks = smaller
    if lease.arena.lease_watch is not None:
        lease.arena.lease_watch(lease)
    return lease


cdef Lease begin_load(Lease lease, kvshm_load *ptr, uint32_t n):
    """It holds what match_load found in memory, and the rest when that has come. ptr: NULL where
    n = 0; owned from here on, also after an error."""
    cdef Load load
    lease.promised_ = n
    if n == 0:
        lease.states_ = np.empty(0, np.uint8)
        return begin_lease(lease, 0, 0)
    load = new_load(lease.arena, ptr, n)
    lease.load = load
    lease.released_ = False
    lease.taken_at = now()
    lease.look()
    if lease.arena.lease_watch is not None:
        lease.arena.lease_watch(lease)
    return lease


cdef Lease lease_of_holds(Attachment arena, object tag, const kvshm_handle *h, uint32_t n):
    """A lease of single holds that this process has; they are dropped if there can be none."""
    cdef kvshm_lease token = 0
    cdef uint64_t number
    cdef Lease lease
    cdef int rc = 0
    cdef uint32_t i
    try:
        number = as_tag(tag)
        lease = new_lease(arena, tag, n)
        if n:
            with nogil:
                rc = kvshm_lease_make(arena.ptr, h, n, number, &token)
            if rc < 0:
                fail(rc, f"lease of {n} blocks")
    except BaseException:
        with nogil:
            kvshm_drop(arena.ptr, h, n)
        raise
    for i in range(n):
        lease.blocks[i] = h[i].id
    return begin_lease(lease, token, n)
