# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""The NVMe tier of an arena. See Arena, whose methods do their work here."""
import os
from collections.abc import Mapping

cimport cython
from libc.errno cimport ENOENT
from libc.stdint cimport int64_t, uint8_t, uint32_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_AUTO, KVSHM_OFF, KVSHM_REQUIRE, KVSHM_TIER_AUTO,
                           KVSHM_TIER_FILES, KVSHM_TIER_THREADS, KVSHM_TIER_URING,
                           KVSHM_TIER_WRITE_IDLE, KVSHM_TIER_WRITE_LAZY, KVSHM_TIER_WRITE_OFF,
                           KVSHM_TIER_WRITE_RELEASE, KVSHM_TIER_WRITE_THROUGH,
                           KVSHM_TIER_WRITE_WATERMARK, kvshm_get_tier, kvshm_prefetch,
                           kvshm_tier, kvshm_tier_cancel, kvshm_tier_clear, kvshm_tier_drain,
                           kvshm_tier_engine_name, kvshm_tier_flush, kvshm_tier_open,
                           kvshm_tier_options, kvshm_tier_options_init, kvshm_tier_status,
                           kvshm_tier_store)
from kvshm.convert cimport (Bytes, Handles, Keys, as_bytes, as_handles, as_keys, as_ms, as_number,
                            as_size, deadline_in, fail, now)

import numpy as np

from kvshm.errors import InvalidArgument
from kvshm.lease import Lease
from kvshm.nearest import suggestion
from kvshm.records import TierInfo

_CHOICES = {
    "engine": {"auto": KVSHM_TIER_AUTO, "io_uring": KVSHM_TIER_URING,
               "threads": KVSHM_TIER_THREADS},
    "direct": {"auto": KVSHM_AUTO, "require": KVSHM_REQUIRE, "off": KVSHM_OFF},
    "write": {"through": KVSHM_TIER_WRITE_THROUGH, "lazy": KVSHM_TIER_WRITE_LAZY,
              "watermark": KVSHM_TIER_WRITE_WATERMARK, "release": KVSHM_TIER_WRITE_RELEASE,
              "idle": KVSHM_TIER_WRITE_IDLE, "off": KVSHM_TIER_WRITE_OFF},
    "mover": {"auto": KVSHM_AUTO, "off": KVSHM_OFF},
}
_NAMES = (*_CHOICES, "sync", "admit", "queue", "deadline", "min_speed", "gather", "age", "low",
          "stores", "min_prefix", "min_priority")
_MOVERS = "", "this", "other"


@cython.final
cdef class TierOptions:
    """kvshm_tier_options, checked, and the paths that it points to."""
    cdef kvshm_tier_options c
    cdef const char *paths[8]
    cdef list keep

    def __cinit__(self, tier, size, options):
        assert KVSHM_TIER_FILES <= 8
        self.c = kvshm_tier_options_init()
        if isinstance(tier, (str, bytes, os.PathLike)):
            tier = [tier]
        try:
            self.keep = [os.path.abspath(os.fsencode(path)) for path in tier]
        except TypeError:
            raise InvalidArgument(
                f"tier: expected a path or a list of paths, got {tier!r}") from None
        if not 1 <= len(self.keep) <= KVSHM_TIER_FILES:
            raise InvalidArgument(f"tier: 1 to {KVSHM_TIER_FILES} files, got {len(self.keep)}")
        for i, path in enumerate(self.keep):
            if b"\0" in path:
                raise InvalidArgument(f"tier: a NUL in {path!r}")
            self.paths[i] = <const char *><bytes>path
        self.c.paths, self.c.npaths = self.paths, <uint32_t>len(self.keep)
        self.c.bytes = as_size(size, "tier_size")
        if not isinstance(options, Mapping):
            raise InvalidArgument(f"tier_options: expected a dict, got {options!r}")
        for name in options:
            if name not in _NAMES:
                raise InvalidArgument(f"tier_options: no option {name!r}; there are "
                                      f"{', '.join(_NAMES)}{suggestion(name, _NAMES)}")
        given = {"engine": "auto", "direct": "auto", "write": "through", "mover": "auto"} | options
        self.c.engine = _choice(given, "engine")
        self.c.direct = _choice(given, "direct")
        self.c.write = _choice(given, "write")
        self.c.mover = _choice(given, "mover")
        self.c.sync = bool(given.get("sync", False))
        self.c.admit = as_number(given.get("admit", 1), "tier admit")
        self.c.queue = as_number(given.get("queue", 0), "tier queue")
        self.c.min_speed = as_size(given.get("min_speed", 0), "tier min_speed")
        self.c.gather = as_size(given.get("gather", 0), "tier gather")
        self.c.age_ms = as_number(as_ms(given.get("age"), "tier age"), "tier age, milliseconds")
        low = given.get("low", 0)
        if not isinstance(low, (int, float)) or not 0 <= low <= 1:
            raise InvalidArgument(f"tier low: expected a share from 0 to 1, got {low!r}")
        self.c.low = <uint32_t>round(low * 1000)
        self.c.stores = as_number(given.get("stores", 0), "tier stores")
        self.c.min_prefix = as_number(given.get("min_prefix", 0), "tier min_prefix")
        self.c.min_priority = as_number(given.get("min_priority", 0), "tier min_priority")
        self.c.deadline_ms = as_number(as_ms(given.get("deadline"), "tier deadline"),
                                       "tier deadline, milliseconds")


def _choice(given, name):
    try:
        return _CHOICES[name][given[name]]
    except (KeyError, TypeError):
        raise InvalidArgument(f"tier {name}: expected one of {', '.join(_CHOICES[name])}, got "
                              f"{given[name]!r}") from None


def parse(tier, size, options):
    """What Arena.open was given, before anything is made: TierOptions, or None for no tier."""
    if tier is not None:
        return TierOptions(tier, size, {} if options is None else options)
    if size or options:
        raise InvalidArgument("tier_size and tier_options need a tier")
    return None


def join(Attachment arena, TierOptions options):
    cdef int rc
    arena.alive()
    with nogil:  # may make the file, as large as it is to be
        rc = kvshm_tier_open(arena.ptr, &options.c)
    if rc < 0:
        fail(rc, "tier " + os.fsdecode(b":".join(options.keep)))


def describe(Attachment arena):
    cdef kvshm_tier t
    cdef int rc
    arena.alive()
    t.size = sizeof(t)
    with nogil:  # a walk over all slots
        rc = kvshm_get_tier(arena.ptr, &t)
    if rc == -ENOENT:
        return None
    if rc < 0:
        fail(rc, "tier")
    return TierInfo(
        state=t.state, engine=kvshm_tier_engine_name(t.engine).decode(), direct=bool(t.direct),
        why=t.why.decode("utf-8", "replace"), files=t.files,
        path=t.path.decode("utf-8", "surrogateescape"), image=t.image.decode(), slots=t.slots,
        slot_bytes=t.slot_bytes, ready=t.slots_ready, rebuild_done=t.rebuild_done,
        rebuild_total=t.rebuild_total, queued=t.queued, in_flight=t.in_flight, align=t.align,
        registered=bool(t.registered), read_speed=t.read_speed,
        mover=_MOVERS[t.mover], mover_pid=t.mover_pid, fetching=t.fetching)


cdef Handles _named(object handles):
    """A Lease stands for the blocks that it holds."""
    if isinstance(handles, Lease):
        handles = [h for h in handles.handles if h is not None]
    return as_handles(handles)


def store(Attachment arena, handles):
    cdef Handles wanted
    cdef int64_t n
    arena.alive()
    wanted = _named(handles)
    with nogil:
        n = kvshm_tier_store(arena.ptr, wanted.ptr, wanted.n)
    if n < 0:
        fail(n, f"offer {wanted.n} blocks to the tier")
    return n


def cancel(Attachment arena, handles):
    cdef Handles wanted
    cdef int64_t n
    arena.alive()
    wanted = _named(handles)
    with nogil:
        n = kvshm_tier_cancel(arena.ptr, wanted.ptr, wanted.n)
    if n < 0:
        fail(n, f"take back the offers of {wanted.n} blocks")
    return n


def flush(Attachment arena):
    arena.alive()
    rc = kvshm_tier_flush(arena.ptr)
    if rc < 0:
        fail(rc, "flush the tier")


def prefetch(Attachment arena, keys):
    cdef Keys wanted = as_keys(keys)
    cdef int64_t n
    arena.alive()
    with nogil:
        n = kvshm_prefetch(arena.ptr, wanted.ptr, wanted.n)
    if n < 0:
        fail(n, f"prefetch {wanted.n} keys")
    return n


def status(Attachment arena, keys):
    cdef Keys wanted = as_keys(keys)
    cdef Bytes out
    cdef int rc
    arena.alive()
    found = np.zeros(wanted.n, np.uint8)
    out = as_bytes(found, True)
    with nogil:
        rc = kvshm_tier_status(arena.ptr, wanted.ptr, wanted.n, <uint8_t *>out.ptr)
    if rc < 0:
        fail(rc, f"tier status of {wanted.n} keys")
    return found


def drain(Attachment arena, timeout):
    return arena.wait_for(kvshm_tier_drain, deadline_in(timeout), "drain the tier")


def clear(Attachment arena, timeout):
    cdef double deadline = deadline_in(timeout)
    cdef uint32_t ms = <uint32_t>max(1.0, (deadline - now()) * 1000)
    cdef int64_t n
    arena.alive()
    with nogil:
        n = kvshm_tier_clear(arena.ptr, ms)
    if n < 0:
        fail(n, "clear the tier")
    return n
