# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Blocks on their way from the disk: what a Lease of match(load=True) has until all have ended.

The library's object is freed when it was dropped and the last thread has left it, so a lease may
be released while others wait for it. Its news comes from a thread of the library, which is kept
for no longer than it takes to wake the event loops.
"""
import atexit
import weakref

cimport cython
from cpython.exc cimport PyErr_SetInterrupt
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_LD_AWAITED, KVSHM_LD_LOADING, kvshm_lease, kvshm_load,
                           kvshm_load_free, kvshm_load_lease, kvshm_load_notify,
                           kvshm_load_status, kvshm_load_wait)
from kvshm.convert cimport Bytes, as_bytes, fail

import numpy as np

cdef object _PRIVATE = object()
cdef object _listening = weakref.WeakSet()


@cython.final
@cython.no_gc_clear
cdef class Load:
    """Private to kvshm.lease."""

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError("see Arena.match(load=True)")

    cdef bint enter(self) noexcept:
        """Keeps the library's object from being freed until leave(); False: it was dropped."""
        cdef bint fine
        with cython.critical_section(self):
            fine = not self.over
            self.users += fine
        return fine

    cdef void leave(self) noexcept:
        cdef bint last
        with cython.critical_section(self):
            self.users -= 1
            last = self.over and not self.users
        if last:
            self.free()

    cdef void drop(self) noexcept:
        """Once: nobody enters any more, and the last one to leave frees it."""
        cdef bint last
        with cython.critical_section(self):
            last = not self.over and not self.users
            self.over = True
        if last:
            self.free()

    cdef void free(self) noexcept:
        cdef kvshm_load *ptr
        if self.arena.is_inherited():  # it is the parent's, and so are its threads
            self.ptr = NULL
            return
        self.take_back()
        with cython.critical_section(self):
            ptr = self.ptr
            self.ptr = NULL
        if ptr is not NULL:
            with nogil:  # drops holds, which may wake waiters
                kvshm_load_free(ptr)
        _wake(self)

    cdef void take_back(self) noexcept:
        """No news any more. One that is being told needs the GIL, and is waited for."""
        cdef bint mine
        if not self.noticed:
            return
        with nogil:
            kvshm_load_notify(self.ptr, NULL, NULL)
        with cython.critical_section(self):
            mine, self.noticed = self.noticed, False
        if mine:
            Py_DECREF(self)

    cdef int wait(self, uint32_t ms) except? 1:
        cdef int rc
        with nogil:
            rc = kvshm_load_wait(self.ptr, ms)
        return rc

    cdef int64_t look(self, uint32_t *ids) except -1:
        """How many are held, in order; `states`, `under_way` and `ids` are of this moment. The
        caller has the lock."""
        cdef int64_t n
        cdef uint32_t i, under_way = 0
        cdef Bytes out
        cdef const uint8_t *state
        states = np.empty(self.n, np.uint8)
        out = as_bytes(states, True)
        state = <const uint8_t *>out.ptr
        with nogil:
            n = kvshm_load_status(self.ptr, <uint8_t *>out.ptr, ids)
            for i in range(self.n):
                under_way += state[i] == KVSHM_LD_LOADING or state[i] == KVSHM_LD_AWAITED
        if n < 0:
            fail(n, "state of a load")
        del out  # an exported buffer could not be made read-only
        states.flags.writeable = False
        self.states = states
        self.under_way = under_way
        return n

    cdef int64_t settle(self, kvshm_lease *lease) except -1:
        """All have ended: what is held becomes a lease. The caller has the lock."""
        cdef int64_t n
        with nogil:
            n = kvshm_load_lease(self.ptr, lease)
        if n < 0:
            fail(n, "lease of what was loaded")
        return n

    cdef int listen(self, object waiter) except -1:
        """waiter: (event loop, future), to be woken when all have ended or nobody holds it."""
        cdef bint first
        cdef int rc
        with cython.critical_section(self):
            first = not self.noticed
            self.noticed = True
            if first:
                Py_INCREF(self)  # the library's; given back by who ends the notice
            (<list>self.waiting).append(waiter)
        if first:
            _listening.add(self)
            with nogil:  # may call back at once
                rc = kvshm_load_notify(self.ptr, _ended, <void *>self)
            if rc < 0:
                self.take_back()
                fail(rc, "notice of a load")
        return 0

    def forget(self, waiter):
        """It was cancelled, or is served."""
        with cython.critical_section(self):
            if waiter in self.waiting:
                self.waiting.remove(waiter)

    def silence(self):
        """The interpreter ends: no thread of the library may want its GIL any more."""
        if self.enter():
            try:
                if not self.arena.is_inherited():
                    self.take_back()
            finally:
                self.leave()

    def __dealloc__(self):
        if self.ptr is not NULL:
            self.drop()


cdef void _wake(Load load) noexcept:
    with cython.critical_section(load):
        waiting, load.waiting = load.waiting, []
    for loop, future in waiting:
        try:
            loop.call_soon_threadsafe(_serve, future)
        except RuntimeError:  # that loop is closed: nobody waits in it
            pass
        except KeyboardInterrupt:  # for who called the library, not for its thread
            PyErr_SetInterrupt()


def _serve(future):
    if not future.done():
        future.set_result(None)


cdef void _ended(void *user) noexcept with gil:
    cdef Load load = <Load>user
    cdef bint mine
    _wake(load)
    with cython.critical_section(load):
        mine, load.noticed = load.noticed, False
    if mine:
        Py_DECREF(load)


cdef Load new_load(Attachment arena, kvshm_load *ptr, uint32_t n):
    cdef Load load
    try:
        load = Load.__new__(Load, _PRIVATE)
        load.waiting = []
        load.arena, load.n = arena, n
    except BaseException:
        with nogil:
            kvshm_load_free(ptr)
        raise
    load.ptr = ptr
    return load


def _silence():
    for load in list(_listening):
        load.silence()


atexit.register(_silence)
