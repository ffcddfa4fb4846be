# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Registering an arena's blocks with a device, so that it copies at full speed. See Arena."""
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.pycapsule cimport PyCapsule_CheckExact, PyCapsule_GetPointer
from libc.errno cimport ETIMEDOUT
from libc.stdint cimport int64_t, uint32_t, uintptr_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_AUTO, KVSHM_DEVICE_REGISTERED, KVSHM_EUNSUPPORTED, KVSHM_REQUIRE,
                           kvshm_device, kvshm_device_backend, kvshm_device_options,
                           kvshm_device_options_init, kvshm_device_range, kvshm_device_ranges,
                           kvshm_get_device, kvshm_register_device, kvshm_unregister_device,
                           kvshm_wait_device)
from kvshm.convert cimport as_size, deadline_in, fail, slice_ms

from operator import index

from kvshm.errors import InvalidArgument
from kvshm.records import DeviceInfo, DeviceRange

_MODES = {"auto": KVSHM_AUTO, "require": KVSHM_REQUIRE}


cdef const kvshm_device_backend *_backend(object given) except? NULL:
    if given == "cuda":
        return NULL
    if PyCapsule_CheckExact(given):
        return <const kvshm_device_backend *>PyCapsule_GetPointer(given, b"kvshm_device_backend")
    try:
        return <const kvshm_device_backend *><uintptr_t>index(given)
    except (TypeError, OverflowError):
        raise InvalidArgument(f"backend: expected 'cuda', a capsule 'kvshm_device_backend' or the "
                              f"address of one, got {given!r}") from None


cdef bint _wait(Attachment arena, double deadline) except -1:
    """Until it is at rest; False at the deadline."""
    return arena.wait_for(kvshm_wait_device, deadline, "register with a device")


def register(Attachment arena, backend, mode, piece, drain, device, timeout):
    cdef kvshm_device_options o = kvshm_device_options_init()
    cdef double deadline = deadline_in(timeout)
    cdef double drain_s
    cdef int rc
    if mode not in _MODES:
        raise InvalidArgument(f"mode: expected one of {sorted(_MODES)}, got {mode!r}")
    try:
        drain_s = drain
        o.device = -1 if device is None else index(device)
    except (TypeError, OverflowError):
        raise InvalidArgument(f"drain: seconds, and device: a number; got {drain!r}, "
                              f"{device!r}") from None
    if not 0 < drain_s <= 3600:
        raise InvalidArgument(f"drain: expected more than 0 and at most 3600 seconds, got {drain}")
    o.backend = _backend(backend)
    o.mode = _MODES[mode]
    o.piece_bytes = as_size(piece, "piece")
    o.drain_ms = <uint32_t>(drain_s * 1000) or 1
    o.timeout_ms = 0
    arena.alive()
    with nogil:
        rc = kvshm_register_device(arena.ptr, &o)
    if rc < 0:
        fail(rc, "register with a device")
    if timeout == 0:
        return describe(arena)
    if not _wait(arena, deadline):
        fail(-ETIMEDOUT, f"register with a device in {timeout} s")
    found = describe(arena)
    if o.mode == KVSHM_REQUIRE and found.state != KVSHM_DEVICE_REGISTERED:
        unregister(arena, 0)  # a second reference to what another call was content with
        fail(-KVSHM_EUNSUPPORTED, f"register all blocks with a device: {found.reason}")
    return found


def wait(Attachment arena, timeout):
    return _wait(arena, deadline_in(timeout))


def unregister(Attachment arena, timeout):
    cdef double deadline = deadline_in(timeout)
    cdef int rc
    arena.alive()
    with nogil:
        rc = kvshm_unregister_device(arena.ptr, slice_ms(deadline))
    if rc < 0 and rc != -ETIMEDOUT:
        fail(rc, "unregister with the device")
    if rc and timeout > 0 and not _wait(arena, deadline):
        fail(-ETIMEDOUT, f"unregister with the device in {timeout} s")


def describe(Attachment arena):
    cdef kvshm_device d
    cdef int rc
    arena.alive()
    d.size = sizeof(d)
    with nogil:  # a driver may be starting up
        rc = kvshm_get_device(arena.ptr, &d)
    if rc < 0:
        fail(rc, "device")
    return DeviceInfo(
        state=d.state, backend=d.backend.decode("utf-8", "replace"), references=d.references,
        bytes=d.bytes, bytes_registered=d.bytes_registered, bytes_foreign=d.bytes_foreign,
        pieces=d.pieces, piece_blocks=d.piece_blocks, stuck=d.stuck, code=d.code,
        reason=d.reason.decode("utf-8", "replace"))


def ranges(Attachment arena):
    cdef kvshm_device_range *found = NULL
    cdef int64_t n = 0, cap = 0, i
    arena.alive()
    try:
        while True:
            n = kvshm_device_ranges(arena.ptr, found, cap)
            if n < 0:
                fail(n, "ranges of the device")
            if n <= cap:
                return [DeviceRange(found[i].first, found[i].blocks, bool(found[i].foreign))
                        for i in range(n)]
            cap = n + 8
            PyMem_Free(found)
            found = <kvshm_device_range *>PyMem_Malloc(cap * sizeof(kvshm_device_range))
            if found is NULL:
                raise MemoryError()
    finally:
        PyMem_Free(found)
