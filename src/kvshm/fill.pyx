# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Blocks being written: allocate or join, write, then register, publish or abort."""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport ETIMEDOUT
from libc.stdint cimport int64_t, uint8_t, uint32_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_ALLOW, KVSHM_ENOSPACE, KVSHM_MAX_PARTS, KVSHM_REJECT,
                           kvshm_abort, kvshm_allocate, kvshm_copy_in, kvshm_drop, kvshm_evicted,
                           kvshm_fill_arrive, kvshm_fill_begin, kvshm_fill_join,
                           kvshm_fill_options, kvshm_fill_options_init, kvshm_handle, kvshm_key,
                           kvshm_publish, kvshm_register)
from kvshm.convert cimport (Bytes, Handles, Keys, as_bytes, as_handles, as_keys, as_number,
                            as_ms, deadline_in, fail, failure, from_handle, handle_array,
                            new_handles, no_space_in_time, now, slice_ms)
from kvshm.lease cimport Lease, lease_of_holds
from kvshm.views cimport view_fill

import numpy as np

from kvshm.errors import Closed, InvalidArgument, wrong_size

cdef object _PRIVATE = object()
_POLICIES = {"allow": KVSHM_ALLOW, "reject": KVSHM_REJECT}


@cython.final
@cython.no_gc_clear
cdef class Fill:
    """n blocks that this process writes. What is neither registered nor published when the Fill
    dies, or at the end of its with block, is aborted: its keys never become visible.

    A block of several `parts` is whole when each was begun once and has arrived, by whoever joined.
    Views of a Fill are writable and keep their block from being reused, even after an abort.
    """

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError("a Fill comes from Arena.allocate() or .join()")

    cdef int usable(self) except -1:
        if not self.open_:
            raise Closed("this fill is over: registered, published or aborted")
        return 0

    cdef kvshm_handle handle_at(self, Py_ssize_t index) except *:
        self.usable()
        if index < 0:
            index += self.handles_.n
        if not 0 <= index < self.handles_.n:
            raise IndexError(f"block {index} of a fill of {self.handles_.n}")
        return self.handles_.ptr[index]

    @property
    def active(self):
        """True until register, publish or abort."""
        return self.open_

    @property
    def ids(self):
        """Block ids, uint32 of shape (n,)."""
        cdef uint32_t i
        return np.array([self.handles_.ptr[i].id for i in range(self.handles_.n)], np.uint32)

    @property
    def handles(self):
        """Handles, to be sent to other processes for Arena.join() and Arena.wait()."""
        cdef uint32_t i
        return [from_handle(self.handles_.ptr[i]) for i in range(self.handles_.n)]

    @property
    def handle_array(self):
        """The same in one array of kvshm.convert.HANDLE_DTYPE."""
        return handle_array(self.handles_.ptr, self.handles_.n)

    def view(self, Py_ssize_t index):
        """The bytes of block `index`, writable. The View is a member of the fill of its own."""
        return view_fill(self.arena, self.handle_at(index))

    def copy_in(self, Py_ssize_t index, data, Py_ssize_t offset=0):
        """Copy `data` (any buffer or tensor in host memory) into block `index` from `offset` on,
        past the caches where that pays. Counted as a copy. InvalidArgument past the end."""
        cdef kvshm_handle h = self.handle_at(index)
        cdef Bytes source = as_bytes(data, False)
        cdef int rc
        if offset < 0:
            raise InvalidArgument(f"offset {offset}")
        with nogil:
            rc = kvshm_copy_in(self.arena.ptr, h, offset, source.ptr, source.n)
        if rc < 0:
            fail(rc, f"copy into block {h.id}")

    def begin(self, Py_ssize_t index, part=0):
        """Before the first byte of a part is written. Misuse if anybody began it before."""
        cdef kvshm_handle h = self.handle_at(index)
        cdef uint32_t c_part = as_number(part, "part")
        cdef int rc
        with nogil:
            rc = kvshm_fill_begin(self.arena.ptr, h, c_part)
        if rc < 0:
            fail(rc, f"begin part {part} of block {h.id}")

    def arrive(self, Py_ssize_t index, part=0):
        """After the last byte of a part is in place. Misuse if this process did not begin it."""
        cdef kvshm_handle h = self.handle_at(index)
        cdef uint32_t c_part = as_number(part, "part")
        cdef int rc
        with nogil:
            rc = kvshm_fill_arrive(self.arena.ptr, h, c_part)
        if rc < 0:
            fail(rc, f"arrive with part {part} of block {h.id}")

    def register(self, policy="allow", keys=None, tag=""):
        """Make all blocks visible under their keys and return the Lease that holds them, in order.

        keys: (n, 16) uint8, unless allocate had them. Where a key is present already, "allow"
        keeps this block beside it, "reject" closes this one and the Lease holds the present one.
        `results` of the Lease says what became of each (kvshm.Status). On an error the blocks from
        the failing one on stay in this Fill, those before it are registered and not held.
        """
        cdef Keys given
        cdef const kvshm_key *c_keys = NULL
        cdef Handles out = new_handles(self.handles_.n)
        cdef uint32_t n = self.handles_.n
        cdef uint32_t start = self.first
        cdef int c_policy
        cdef int64_t done = 0
        cdef Bytes c_results
        cdef Lease lease
        self.usable()
        if policy not in _POLICIES:
            raise InvalidArgument(f"policy: expected 'allow' or 'reject', got {policy!r}")
        c_policy = _POLICIES[policy]
        if keys is None and self.keys is None and n:
            raise InvalidArgument("register: no keys, neither here nor at allocate")
        if keys is not None:
            given = as_keys(keys)
            if given.n != n:
                raise wrong_size("register: keys", n, given.n)
            c_keys = given.ptr + start
        results = np.zeros(n, np.uint8)
        c_results = as_bytes(results, True)
        while start < n:
            with nogil:
                done = kvshm_register(self.arena.ptr, self.handles_.ptr + start, n - start, c_keys,
                                      c_policy, out.ptr + start,
                                      <uint8_t *>c_results.ptr + start)
            if done < 0:
                break
            start += <uint32_t>done
            if c_keys is not NULL:
                c_keys += done
        if done < 0:
            error = failure(done, f"register block {start} of {n}")
            with nogil:
                kvshm_drop(self.arena.ptr, out.ptr + self.first, start - self.first)
            self.first = start
            raise error
        self.open_ = False
        lease = lease_of_holds(self.arena, tag, out.ptr + self.first, n - self.first)
        lease.results = results[self.first:]
        return lease

    def publish(self, tag=""):
        """As a member, when all parts of all blocks have arrived: they become READY, and the Lease
        that is returned holds them. Also if another member was faster. Misuse: parts are missing;
        try again when they have arrived."""
        cdef int rc = 0
        self.usable()
        while self.published < self.handles_.n:
            with nogil:
                rc = kvshm_publish(self.arena.ptr, self.handles_.ptr[self.published])
            if rc < 0:
                fail(rc, f"publish block {self.published} of {self.handles_.n}")
            self.published += 1
        self.open_ = False
        return lease_of_holds(self.arena, tag, self.handles_.ptr, self.handles_.n)

    def abort(self):
        """Leave the fill. The last member's leaving frees the block. A second call does nothing."""
        self.leave()

    cdef int leave(self) noexcept:
        cdef uint32_t first
        cdef bint was_open
        cdef int rc = 0
        with cython.critical_section(self):
            was_open, self.open_ = self.open_, False
            first = self.first
        if was_open and first < self.handles_.n:
            # What is READY by now is released instead. Closing a block wakes waiters: no GIL.
            with nogil:
                rc = kvshm_abort(self.arena.ptr, self.handles_.ptr + first,
                                 self.handles_.n - first)
        return rc

    def __dealloc__(self):
        if self.open_:
            self.leave()

    def __len__(self):
        return self.handles_.n

    def __enter__(self):
        self.usable()
        return self

    def __exit__(self, *exc):
        self.leave()

    def __repr__(self):
        state = "being written" if self.open_ else "over"
        role = "member's " if self.member else ""
        return f"<kvshm.Fill: {role}{self.handles_.n} blocks, {self.parts} parts each, {state}>"


cdef Fill allocate_fill(Attachment arena, object n, object keys, kvshm_handle parent,
                        object parts, uint32_t flags, object timeout, object priority,
                        object tenant, object ttl, object priority_seconds):
    cdef Fill fill = Fill.__new__(Fill, _PRIVATE)
    cdef kvshm_fill_options options = kvshm_fill_options_init()
    cdef kvshm_evicted evicted
    cdef double deadline = deadline_in(timeout)
    cdef bint patient = timeout > 0
    cdef Keys given
    cdef const kvshm_key *c_keys = NULL
    cdef Bytes c_status, c_room
    cdef kvshm_handle nothing
    cdef uint32_t count
    cdef int rc = 0
    arena.alive()
    if n < 0:
        raise InvalidArgument(f"allocate {n} blocks")
    if n > arena.blocks:
        count = min(n, 0xffffffff)
        with nogil:
            rc = kvshm_allocate(arena.ptr, count, NULL, NULL, &nothing, NULL, NULL)
        fail(rc, f"allocate {n}")
    if not 1 <= parts <= KVSHM_MAX_PARTS:
        raise InvalidArgument(f"parts: expected 1 to {KVSHM_MAX_PARTS}, got {parts}")
    if priority is not None and not 1 <= priority <= 100:
        raise InvalidArgument(f"priority: expected 1 to 100, got {priority}")
    count = as_number(n, "allocate")
    if keys is not None:
        given = as_keys(keys)
        if given.n != count:
            raise wrong_size("allocate: keys", count, given.n)
        c_keys = given.ptr
        fill.keys = keys
    options.flags = flags
    options.parts = as_number(parts, "parts")
    options.priority = as_number(priority or 0, "priority")
    options.tenant = as_number(tenant, "tenant")
    options.ttl_ms = as_ms(ttl, "ttl")
    options.priority_ms = as_ms(priority_seconds, "priority_seconds")
    options.parent = parent
    fill.arena = arena
    fill.parts = parts
    fill.handles_ = new_handles(count)
    fill.status = np.zeros(count, np.uint8)
    c_status = as_bytes(fill.status, True)
    room = np.empty((count, 16), np.uint8)
    evicted.size = sizeof(evicted)
    c_room = as_bytes(room, True)
    evicted.keys = <kvshm_key *>c_room.ptr
    evicted.cap = count
    while True:
        options.timeout_ms = slice_ms(deadline) if patient else 0
        evicted.count = 0
        with nogil:
            rc = kvshm_allocate(arena.ptr, count, c_keys, &options, fill.handles_.ptr,
                                <uint8_t *>c_status.ptr, &evicted)
        if not patient or now() >= deadline or rc not in (-ETIMEDOUT, -KVSHM_ENOSPACE):
            break
        PyErr_CheckSignals()
        arena.alive()
    if patient and (rc == -ETIMEDOUT or rc == -KVSHM_ENOSPACE):
        raise no_space_in_time(f"allocate {count} blocks", timeout)
    if rc < 0:
        fail(rc, f"allocate {count} blocks")
    fill.open_ = True
    fill.evicted = room[:evicted.count].copy()
    return fill


cdef Fill join_fill(Attachment arena, object handles):
    """Become a member of other processes' fills: all of them or none."""
    cdef Fill fill = Fill.__new__(Fill, _PRIVATE)
    cdef Handles wanted = as_handles(handles)
    cdef uint32_t i
    cdef int rc = 0
    arena.alive()
    fill.arena = arena
    fill.member = True
    fill.parts = 0
    fill.handles_ = wanted
    for i in range(wanted.n):
        with nogil:
            rc = kvshm_fill_join(arena.ptr, wanted.ptr[i])
        if rc < 0:
            error = failure(rc, f"join the fill of block {wanted.ptr[i].id}")
            with nogil:
                kvshm_abort(arena.ptr, wanted.ptr, i)
            raise error
    fill.open_ = True
    return fill
