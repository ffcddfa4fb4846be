# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Holds of n blocks as one Python object: what match, pin and register return."""
cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_ECLOSED, KVSHM_EFORKED, KVSHM_NONE, kvshm_copy_out, kvshm_drop,
                           kvshm_handle, kvshm_handle_of, kvshm_lease, kvshm_lease_make,
                           kvshm_lease_trim, kvshm_release)
from kvshm.convert cimport (Bytes, Handles, as_bytes, as_tag, fail, from_handle, handle_array,
                            new_handles, now)
from kvshm.views cimport view_held

import numpy as np

from kvshm.errors import Closed, InvalidArgument, Misuse

cdef object _PRIVATE = object()


@cython.final
@cython.no_gc_clear
cdef class Lease:
    """n blocks, held until release() or the end of a with block; len() is n.

    A lease of match_scattered has an entry for every key asked for, NONE where it was not found.
    Any thread may use and release it. What dies without being released is released then.
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
        if keep < self.n:
            with nogil:
                rc = kvshm_lease_trim(self.arena.ptr, self.lease, <uint32_t>keep)
            if rc < 0:
                fail(rc, "trim a lease")
        self.n = <uint32_t>keep
        self.ids_ = None

    def release(self):
        """Give all blocks back; Views keep theirs. A second call does nothing."""
        cdef int rc = self.give_back()
        # Closing gave everything back already, and a forked child has nothing to give.
        if rc < 0 and rc != -KVSHM_ECLOSED and rc != -KVSHM_EFORKED:
            fail(rc, "release a lease")

    cdef int give_back(self) noexcept:
        cdef kvshm_lease lease
        cdef int rc = 0
        with cython.critical_section(self):
            lease = self.lease
            self.lease = 0
            self.released_ = True
        if lease:
            # Drops to nobody wake waiters, and may wait for another thread's drop: no GIL.
            with nogil:
                rc = kvshm_release(self.arena.ptr, lease)
        return rc

    def __dealloc__(self):
        if self.lease:
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
        return f"<kvshm.Lease{tag} of {self.n} blocks, {state}>"


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
