# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""The life of this process's attachment to an arena: open, count views, close.

Everything that points into the mapping (views, leases, fills) keeps its Attachment alive, and
counts itself where closing would pull the memory from under it.
"""
from operator import index

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EEXIST, ENOENT, ETIMEDOUT
from libc.stdint cimport int64_t, uint32_t

from kvshm.ckvshm cimport (KVSHM_AUTO, KVSHM_ECLOSED, KVSHM_EFORKED, KVSHM_ENOTREADY,
                           KVSHM_NO_HELPER, KVSHM_NUMA_AUTO, KVSHM_NUMA_INTERLEAVE, KVSHM_OFF,
                           KVSHM_REQUIRE, KVSHM_UNKNOWN_WEIGHTS, kvshm_arena, kvshm_attach,
                           kvshm_auto_name, kvshm_close, kvshm_create, kvshm_get_info,
                           kvshm_identity, kvshm_identity_init, kvshm_info, kvshm_open,
                           kvshm_options, kvshm_options_init, kvshm_remove)
from kvshm.convert cimport as_size, deadline_in, fail, now, slice_ms

from kvshm.errors import Closed, InvalidArgument

_MODES = {"auto": KVSHM_AUTO, "require": KVSHM_REQUIRE, "off": KVSHM_OFF}
_NUMA = {"auto": KVSHM_NUMA_AUTO, "interleave": KVSHM_NUMA_INTERLEAVE}
cdef enum:
    OPEN, CREATE, ATTACH
_HOW = {"open": OPEN, "create": CREATE, "attach": ATTACH}
cdef object _PRIVATE = object()  # proof that a constructor was called by this module


cdef class _Options:
    """kvshm_options and the strings that it points to."""
    cdef kvshm_options c
    cdef kvshm_identity ident
    cdef list keep

    cdef const char *text(self, object value) except? NULL:
        if value is None:
            return NULL
        data = str(value).encode()
        if b"\0" in data:
            raise InvalidArgument(f"a NUL in {value!r}")
        self.keep.append(data)
        return <const char *><bytes>data

    cdef int set_identity(self, object identity) except -1:
        self.ident = kvshm_identity_init()
        self.ident.model = self.text(identity.model)
        self.ident.weights = self.text(identity.weights)
        self.ident.dtype = self.text(identity.dtype)
        self.ident.layout = self.text(identity.layout)
        self.ident.parallel = self.text(identity.parallel)
        self.ident.space = self.text(identity.namespace)
        self.ident.block_tokens = identity.block_tokens
        self.ident.epoch = identity.epoch
        self.ident.flags = KVSHM_UNKNOWN_WEIGHTS if identity.allow_unknown_weights else 0
        self.c.identity = &self.ident
        return 0

    def __cinit__(self):
        self.keep = []
        self.c = kvshm_options_init()

    def __init__(self, size, block_bytes, blocks, identity, dir, label, group, pin, huge, numa,
                 helper, reap_interval, quota):
        self.c.bytes = as_size(size, "size")
        self.c.block_bytes = as_size(block_bytes, "block_bytes")
        self.c.blocks = as_size(blocks, "blocks")
        if identity is not None:
            self.set_identity(identity)
        self.c.dir = self.text(dir)
        self.c.label = self.text(label)
        self.c.group = self.text(group)
        for name, value in (("pin", pin), ("huge", huge)):
            if value not in _MODES:
                raise InvalidArgument(f"{name}: expected one of {sorted(_MODES)}, got {value!r}")
        self.c.pin = _MODES[pin]
        self.c.huge = _MODES[huge]
        try:
            self.c.numa = _NUMA[numa] if isinstance(numa, str) else index(numa)
        except (KeyError, TypeError, OverflowError):
            raise InvalidArgument(
                f"numa: expected a node or one of {sorted(_NUMA)}, got {numa!r}") from None
        self.c.quota = as_size(quota, "quota")
        self.c.flags = 0 if helper else KVSHM_NO_HELPER
        self.c.reap_ms = <uint32_t>max(1, min(60000, int(reap_interval * 1000)))


cdef class Attachment:
    """See kvshm.Arena, the only class to use."""

    def __cinit__(self, token=None, *args):
        if token is not _PRIVATE:
            raise TypeError("use Arena.open(), .create() or .attach()")

    cdef int alive(self) except -1:
        if self.closing or self.gone:
            raise Closed(f"arena {self.name!r} is closed")
        return 0

    cdef bint wait_for(self, waiting_call call, double deadline, str what) except -1:
        """In slices, between which signal handlers run; False at the deadline."""
        cdef uint32_t ms
        cdef int rc
        while True:
            self.alive()
            ms = slice_ms(deadline)
            with nogil:
                rc = call(self.ptr, ms)
            if rc == 0:
                return True
            if rc != -ETIMEDOUT:
                fail(rc, what)
            PyErr_CheckSignals()
            if now() >= deadline:
                return False

    cdef int enter_view(self) except -1:
        """Count a view: the mapping stays until it leaves."""
        with cython.critical_section(self):
            self.alive()
            self.live_views += 1
        return 0

    cdef void leave_view(self) noexcept:
        with cython.critical_section(self):
            self.live_views -= 1

    cdef bint is_inherited(self) noexcept:
        """In a forked child: there is no memory that a view could point to."""
        cdef kvshm_info info
        info.size = sizeof(info)
        return kvshm_get_info(self.ptr, &info) == -KVSHM_EFORKED

    @property
    def closed(self):
        """True after close()."""
        return self.gone

    def close(self, timeout=10.0):
        """Detach: give back all holds, leases and fills of this process. The arena stays.

        Waits up to `timeout` seconds for calls of other threads; kvshm.Busy after that, and nothing
        has changed. BufferError while a View lives, as for mmap. A second call does nothing; in a
        forked child, which owns nothing, the first one does nothing either. Where a device takes
        longer to unregister the memory: Busy, too, with all else done; that goes on by itself, and
        closing once more waits for its end.
        """
        cdef double deadline = deadline_in(timeout)
        cdef uint32_t wait = <uint32_t>((deadline - now()) * 1000)
        cdef int rc
        with cython.critical_section(self):
            if self.gone:
                return
            if self.live_views and not self.is_inherited():
                raise BufferError(
                    f"arena {self.name!r}: {self.live_views} live views; release them first")
            self.alive()
            self.closing = True
        with nogil:
            rc = kvshm_close(self.ptr, wait)
        self.closing = False
        if rc < 0 and rc != -KVSHM_ECLOSED and rc != -KVSHM_EFORKED:
            fail(rc, f"close arena {self.name!r}")
        self.gone = True

    def watch_leases(self, watch):
        """Call watch(lease) for each new lease, or nothing with None (kvshm.index.leases)."""
        self.lease_watch = watch

    def __enter__(self):
        self.alive()
        return self

    def __exit__(self, kind, error, trace):
        try:
            self.close()
        except BufferError:
            if kind is None:
                raise
            # Views in the frames of the exception under way: closed when they and we are gone.

    def __dealloc__(self):
        # Views keep us alive, so none is left. Closing may wait for the helper thread: no GIL.
        if self.ptr is not NULL and not self.gone:
            with nogil:
                kvshm_close(self.ptr, 1000)


def connect(cls, str mode, name, timeout, **given):
    """A new `cls`, attached. mode: open, create or attach; see Arena.open for the rest."""
    cdef Attachment self = cls.__new__(cls, _PRIVATE)
    cdef _Options options = _Options(**given)
    cdef double deadline = deadline_in(timeout)
    cdef kvshm_arena *ptr = NULL
    cdef int rc = -KVSHM_ENOTREADY
    cdef int how = _HOW[mode]
    cdef const char *c_name = options.text(name)
    if c_name is NULL:
        raise InvalidArgument("an arena needs a name")
    while True:
        # Waiting for a creator is done in slices; creating is one call, which fills pages.
        if how != CREATE:
            options.c.timeout_ms = slice_ms(deadline) or 1
            with nogil:
                rc = kvshm_attach(&ptr, c_name, &options.c)
        if how == OPEN and rc == -KVSHM_ENOTREADY:
            # If its creator is dead, this takes its place, or at least clears its remains.
            options.c.timeout_ms = 150
            with nogil:
                rc = kvshm_open(&ptr, c_name, &options.c)
            if rc == -ETIMEDOUT:
                rc = -KVSHM_ENOTREADY
        if how == CREATE or (how == OPEN and rc == -ENOENT):
            options.c.timeout_ms = <uint32_t>max(1, (deadline - now()) * 1000)
            with nogil:
                rc = kvshm_create(&ptr, c_name, &options.c)
            if how == OPEN and rc == -EEXIST:
                rc = -KVSHM_ENOTREADY  # another process was faster
        if rc != -KVSHM_ENOTREADY or how == CREATE or now() >= deadline:
            break
        PyErr_CheckSignals()
    if rc < 0:
        fail(rc, f"{mode} arena {name!r}")
    self.ptr = ptr
    _describe(self)
    self.identity = given["identity"]
    return self


cdef int _describe(Attachment self) except -1:
    cdef kvshm_info info
    cdef int rc
    info.size = sizeof(info)
    rc = kvshm_get_info(self.ptr, &info)
    if rc < 0:
        fail(rc, "arena information")
    self.name = info.name.decode()
    self.path = info.path.decode("utf-8", "surrogateescape")
    self.block_bytes = info.block_bytes
    self.blocks = <uint32_t>info.blocks
    self.slot = info.slot
    return 0


def remove(name, *, dir=None, bint force=False):
    """Mark an arena dead and unlink it. kvshm.Busy while processes are attached, unless `force`:
    they keep what they hold, and their next calls raise ArenaReplaced."""
    cdef bytes c_name = str(name).encode()
    cdef bytes c_dir = b"" if dir is None else str(dir).encode()
    cdef const char *which = c_name
    cdef const char *where = c_dir
    cdef int rc
    if dir is None:
        where = NULL
    with nogil:
        rc = kvshm_remove(which, where, force)
    if rc < 0:
        fail(rc, f"remove arena {name!r}")


def auto_name(identity=None):
    """The name that "auto" stands for: this user and this identity."""
    cdef _Options options = _Options.__new__(_Options)
    cdef char buf[256]
    cdef int64_t n
    if identity is not None:
        options.set_identity(identity)
    n = kvshm_auto_name(options.c.identity, buf, sizeof(buf))
    if n < 0:
        fail(n, "name of the arena")
    return buf[:n].decode()
