# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""The bytes of one block, in place: memoryview, numpy, torch and DLPack without a copy.

A View has a hold of its own. It outlives the Lease or Fill that made it, and close() of the arena
refuses while one lives, so no array can ever point at unmapped memory or at another block's bytes.
"""
import os
import warnings

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_EFORKED, KVSHM_NO_TOUCH, kvshm_abort, kvshm_block_data, kvshm_drop,
                           kvshm_fill_join, kvshm_handle, kvshm_upgrade)
from kvshm.convert cimport fail, from_handle
from kvshm.dlpack cimport (DL_CPU, DL_READ_ONLY, DL_UINT, DLManagedTensor,
                           DLManagedTensorVersioned, DLTensor)

from kvshm.errors import Closed, Error, Misuse

cdef object _PRIVATE = object()
# torch knows no read-only tensor, so a view of a finished block can be written to by mistake.
# With KVSHM_CHECK=1 each read-only view compares a sum of the bytes when it is released.
cdef bint CHECK = os.environ.get("KVSHM_CHECK", "") not in ("", "0")


cdef extern from *:
    const uint64_t ODD "0xff51afd7ed558ccdull"


cdef uint64_t _sum(const char *data, Py_ssize_t n) noexcept nogil:
    """Any change of a single byte changes it: each step is a bijection of the state."""
    cdef uint64_t state = ODD
    cdef uint64_t word = 0
    cdef Py_ssize_t i
    for i in range(0, n - 7, 8):
        memcpy(&word, data + i, 8)
        state = (state ^ word) * ODD
        state ^= state >> 32
    return state


@cython.final
@cython.no_gc_clear
cdef class View:
    """One block as a buffer of uint8: `memoryview(v)`, `numpy.frombuffer(v, dtype)`,
    `torch.frombuffer(v, dtype=...)`, `numpy.from_dlpack(v)`, `v[a:b]`, `v[a:b] = data`.

    Shape (block_bytes,), C-contiguous, in host memory. Read-only unless it belongs to a Fill. The
    block stays held until the View and everything made from it are gone, or until release().
    Usable from any thread; in a forked child the memory is absent, and asking for it raises Forked.
    """

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError("use Lease.view() or Fill.view()")

    cdef int usable(self) except -1:
        if not self.held:
            raise Closed("this view was released")
        if kvshm_block_data(self.arena.ptr, self.handle_.id) is NULL:
            fail(-KVSHM_EFORKED, f"view of block {self.handle_.id}")
        return 0

    @property
    def handle(self):
        """Handle of the block."""
        return from_handle(self.handle_)

    @property
    def readonly(self):
        """False for a View of a Fill."""
        return not self.filling

    @property
    def nbytes(self):
        """Bytes of the block."""
        return self.size

    def release(self):
        """Give the hold back now. BufferError while something made from it lives; a second call
        does nothing. With KVSHM_CHECK=1: Misuse if the bytes of a read-only View have changed."""
        cdef int changed
        with cython.critical_section(self):
            if self.exports:
                raise BufferError(f"block {self.handle_.id}: {self.exports} buffers are in use")
            changed = self.give_back()
        if changed:
            raise Misuse(f"block {self.handle_.id} was written to through a read-only view")

    cdef int give_back(self) noexcept:
        """1 if the bytes changed under a read-only view."""
        cdef kvshm_handle h = self.handle_
        cdef int changed = 0
        if not self.held:
            return 0
        self.held = False
        # Dropping the last hold may wake others or wait for another thread's drop: no GIL.
        with nogil:
            if self.checked and kvshm_block_data(self.arena.ptr, h.id) is not NULL:
                changed = _sum(self.data, self.size) != self.sum
            if self.filling:
                kvshm_abort(self.arena.ptr, &h, 1)
            else:
                kvshm_drop(self.arena.ptr, &h, 1)
        self.arena.leave_view()
        return changed

    def __dealloc__(self):
        if self.held and self.give_back():
            _complain(self.handle_.id)

    def __enter__(self):
        self.usable()
        return self

    def __exit__(self, *exc):
        self.release()

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return memoryview(self)[index]

    def __setitem__(self, index, value):
        if not isinstance(value, int):
            value = memoryview(value).cast("B")
        memoryview(self)[index] = value

    def __repr__(self):
        state = "released" if not self.held else "writable" if self.filling else "read-only"
        return f"<kvshm.View of block {self.handle_.id}, {self.size} bytes, {state}>"

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        buffer.obj = None
        self.usable()
        if flags & PyBUF_WRITABLE and not self.filling:
            raise BufferError(f"block {self.handle_.id} is finished: its bytes are read-only")
        with cython.critical_section(self):
            if not self.held:
                raise Closed("this view was released")
            self.exports += 1
        self.stride = 1
        buffer.buf = self.data
        buffer.obj = self
        buffer.len = self.size
        buffer.itemsize = 1
        buffer.readonly = not self.filling
        buffer.ndim = 1
        buffer.format = <char *>"B" if flags & PyBUF_FORMAT else NULL
        buffer.shape = &self.size if flags & PyBUF_ND else NULL
        buffer.strides = &self.stride if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL

    def __releasebuffer__(self, Py_buffer *buffer):
        with cython.critical_section(self):
            self.exports -= 1

    def __dlpack_device__(self):
        """(kDLCPU, 0)."""
        return (DL_CPU, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A DLPack capsule of uint8, shape (block_bytes,).

        A read-only block needs a consumer of DLPack 1.0 or later, which knows read-only tensors.
        """
        if stream is not None:
            raise BufferError("host memory has no stream")
        if dl_device is not None and tuple(dl_device) != (DL_CPU, 0):
            raise BufferError(f"the block is in host memory, not on device {dl_device}")
        if copy:
            raise BufferError("a view is never a copy")
        self.usable()
        if max_version is not None and max_version[0] >= 1:
            return _versioned_capsule(self)
        if not self.filling:
            raise BufferError(
                "read-only block: the consumer's DLPack (before 1.0) cannot say so; use "
                "frombuffer, or a Fill's view")
        return _capsule(self)


cdef View _make(Attachment arena, kvshm_handle h, bint filling):
    """For a block that the caller holds, with a new hold of the view's own."""
    cdef View view = View.__new__(View, _PRIVATE)
    cdef int rc
    arena.enter_view()
    with nogil:
        if filling:
            rc = kvshm_fill_join(arena.ptr, h)
        else:
            rc = kvshm_upgrade(arena.ptr, h, KVSHM_NO_TOUCH)
    if rc < 0:
        arena.leave_view()
        fail(rc, f"view of block {h.id}")
    view.arena = arena
    view.handle_ = h
    view.filling = filling
    view.held = True
    view.size = <Py_ssize_t>arena.block_bytes
    view.data = <char *>kvshm_block_data(arena.ptr, h.id)
    if view.data is NULL:
        raise Error(f"block {h.id}: this arena has no data (block_bytes is 0)")
    if CHECK and not filling:
        view.checked = True
        with nogil:
            view.sum = _sum(view.data, view.size)
    return view


cdef View view_held(Attachment arena, kvshm_handle h):
    return _make(arena, h, False)


cdef View view_fill(Attachment arena, kvshm_handle h):
    return _make(arena, h, True)


cdef void _complain(unsigned int block) noexcept:
    try:
        warnings.warn(f"block {block} was written to through a read-only view", RuntimeWarning)
    except BaseException:  # a warning made an error: nobody is there to catch it
        pass


# DLPack. The tensor owns a reference to the View and counts as one of its exports.

cdef int64_t *_describe(View view, DLTensor *tensor) except NULL:
    cdef int64_t *shape = <int64_t *>PyMem_RawMalloc(2 * sizeof(int64_t))
    if shape is NULL:
        raise MemoryError()
    shape[0] = view.size
    shape[1] = 1
    tensor.data = view.data
    tensor.device.device_type = DL_CPU
    tensor.device.device_id = 0
    tensor.ndim = 1
    tensor.dtype.code = DL_UINT
    tensor.dtype.bits = 8
    tensor.dtype.lanes = 1
    tensor.shape = shape
    tensor.strides = shape + 1
    tensor.byte_offset = 0
    return shape


cdef void _let_go(void *context, int64_t *shape) noexcept with gil:
    cdef View view = <View>context
    PyMem_RawFree(shape)
    with cython.critical_section(view):
        view.exports -= 1
    Py_DECREF(view)


cdef void _take(View view) noexcept:
    with cython.critical_section(view):
        view.exports += 1
    Py_INCREF(view)


cdef void _delete(DLManagedTensor *managed) noexcept nogil:
    _let_go(managed.manager_ctx, managed.dl_tensor.shape)
    PyMem_RawFree(managed)


cdef void _delete_versioned(DLManagedTensorVersioned *managed) noexcept nogil:
    _let_go(managed.manager_ctx, managed.dl_tensor.shape)
    PyMem_RawFree(managed)


cdef void _unused(object capsule) noexcept:
    """A capsule that nobody consumed; consumers rename theirs."""
    cdef DLManagedTensor *managed
    if PyCapsule_IsValid(capsule, b"dltensor"):
        managed = <DLManagedTensor *>PyCapsule_GetPointer(capsule, b"dltensor")
        managed.deleter(managed)


cdef void _unused_versioned(object capsule) noexcept:
    cdef DLManagedTensorVersioned *managed
    if PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        managed = <DLManagedTensorVersioned *>PyCapsule_GetPointer(capsule, b"dltensor_versioned")
        managed.deleter(managed)


cdef object _capsule(View view):
    cdef DLManagedTensor *managed = <DLManagedTensor *>PyMem_RawMalloc(sizeof(DLManagedTensor))
    if managed is NULL:
        raise MemoryError()
    _describe(view, &managed.dl_tensor)
    managed.manager_ctx = <void *>view
    managed.deleter = _delete
    _take(view)
    return PyCapsule_New(managed, b"dltensor", _unused)


cdef object _versioned_capsule(View view):
    cdef DLManagedTensorVersioned *managed = <DLManagedTensorVersioned *>PyMem_RawMalloc(
        sizeof(DLManagedTensorVersioned))
    if managed is NULL:
        raise MemoryError()
    _describe(view, &managed.dl_tensor)
    managed.version.major = 1
    managed.version.minor = 0
    managed.flags = 0 if view.filling else DL_READ_ONLY
    managed.manager_ctx = <void *>view
    managed.deleter = _delete_versioned
    _take(view)
    return PyCapsule_New(managed, b"dltensor_versioned", _unused_versioned)
