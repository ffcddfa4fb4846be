# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Copies between an engine's paged KV tensors and blocks: many rows in one call, without the GIL.

    pages = kvshm.paged.runs_of(kv_caches, num_blocks)      # once; names what it cannot take
    codes = pages.store(fill, rows)                         # row i of the engine into block i
    codes = pages.finish(fill)                              # found by all, if this was all
    codes = pages.load(lease, rows)                         # the other way

Host memory is copied when store() and load() return. Copies of a device are only enqueued on
`stream`: record an event behind them, and call finish(), or release the lease, when it has passed.
"""
cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EACCES
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t, uintptr_t

from kvshm.ckvshm cimport (KVSHM_MEMORY_CUDA, KVSHM_MEMORY_HOST, KVSHM_NONE, kvshm_handle_of,
                           kvshm_pages, kvshm_pages_check, kvshm_pages_finish, kvshm_pages_load,
                           kvshm_pages_prepare, kvshm_pages_store, kvshm_run)
from kvshm.convert cimport Bytes, Handles, as_bytes, as_number, fail, new_handles
from kvshm.fill cimport Fill
from kvshm.lease cimport Lease

from operator import index

import numpy as np

from kvshm.errors import Closed, InvalidArgument, PermissionDenied
from kvshm.tensors import layout_of

cdef object _PRIVATE = object()


def runs_of(tensors, blocks, rows_per_block=1):
    """The table of an engine's KV tensors: Pages.

    tensors: layer name to tensor, in the engine's order of layers; anything with torch's
    data_ptr(), shape, stride(), element_size(), device and untyped_storage(). The first dimension
    counts `blocks * rows_per_block` kernel rows; the others, in any physical order, contiguous or
    not, belong to the row. Layers that are one and the same view count once.

    A slice holds, allocation by allocation in the order of the layers, what lies in a block by
    address: two processes of one configuration agree on it, wherever their memory lies.

    InvalidArgument names the layer: strides that are zero or negative, elements or blocks that
    overlap, memory beyond the tensor's allocation or not there, another number of blocks, more
    than one device.
    """
    cdef Pages pages = Pages.__new__(Pages, _PRIVATE)
    cdef uint32_t n, i, bad = KVSHM_NONE
    cdef int64_t rc
    layout = layout_of(tensors, index(blocks), index(rows_per_block))
    n = len(layout.pieces)
    pages.runs_ = <kvshm_run *>PyMem_Malloc(n * sizeof(kvshm_run))
    if pages.runs_ is NULL:
        raise MemoryError()
    cdef uint64_t offset = 0
    for i, piece in enumerate(layout.pieces):
        pages.runs_[i].address = piece.address
        pages.runs_[i].stride = piece.stride
        pages.runs_[i].bytes = piece.nbytes
        pages.runs_[i].offset = offset
        offset += <uint64_t>piece.nbytes
    pages.rows = as_number(blocks, "blocks")
    pages.slice_bytes = (offset + 63) // 64 * 64
    rc = kvshm_pages_prepare(pages.runs_, n, pages.rows, pages.slice_bytes, &bad)
    if rc < 0:
        fail(rc, _at_fault(layout, bad))
    pages.table.size = sizeof(pages.table)
    pages.table.runs = pages.runs_
    pages.table.nruns = <uint32_t>rc
    pages.table.rows = pages.rows
    pages.table.slice_bytes = pages.slice_bytes
    pages.device = layout.device
    pages.layout_text = layout.text
    pages.tensors = tuple(tensors.values())
    _look_at_memory(pages, layout)
    return pages


cdef int _look_at_memory(Pages pages, object layout) except -1:
    cdef uint32_t bad = KVSHM_NONE
    cdef int rc
    kind = pages.device.partition(":")[0]
    if kind == "cuda":
        pages.table.memory = KVSHM_MEMORY_CUDA
        pages.writable = True
        return 0
    if kind != "cpu":
        raise InvalidArgument(f"device {pages.device}: expected cpu or cuda")
    pages.table.memory = KVSHM_MEMORY_HOST
    rc = kvshm_pages_check(&pages.table, False, &bad)
    if rc < 0:
        # Runs are joined by now: named is the first layer of the run.
        at = pages.runs_[bad].address if bad != KVSHM_NONE else 0
        for i, piece in enumerate(layout.pieces):
            if piece.address == at:
                fail(rc, _at_fault(layout, i))
        fail(rc, _at_fault(layout, KVSHM_NONE))
    rc = kvshm_pages_check(&pages.table, True, &bad)
    if rc < 0 and rc != -EACCES:
        fail(rc, "memory of the layers")
    pages.writable = rc == 0
    return 0


cdef str _at_fault(object layout, uint32_t bad):
    if bad == KVSHM_NONE:
        return "layers"
    return f"layer {layout.layers[layout.pieces[bad].layer]!r}"


cdef object _row_numbers(object rows):
    """uint32; a number that is none raises instead of becoming another row."""
    array = np.asarray(rows)
    if array.dtype != np.uint32:
        if array.size and (array.dtype.kind not in "iu" or array.min() < 0
                           or array.max() > 0xffffffff):
            raise InvalidArgument("rows: expected numbers of rows, uint32")
        array = array.astype(np.uint32)
    if array.ndim != 1:
        raise InvalidArgument(f"rows: expected one dimension, got {array.ndim}")
    return np.ascontiguousarray(array)


cdef int _check_range(Py_ssize_t first, Py_ssize_t n, Py_ssize_t there) except -1:
    if first < 0 or first + n > there:
        raise InvalidArgument(f"{n} rows for blocks {first} to {first + n} of {there}")
    return 0


cdef object _stored(Fill fill, uint32_t part):
    """The codes of what this Fill has stored of a part; 1 = nothing yet, which must not arrive: the
    part may be under way by another member."""
    with cython.critical_section(fill):
        if fill.stored is None:
            fill.stored = {}
        by_part = fill.stored
    return by_part.setdefault(part, np.ones(fill.handles_.n, np.int32))


@cython.final
cdef class Pages:
    """Where the blocks of an engine's KV tensors lie. It keeps the tensors alive, and changes
    never: any threads may copy by it at the same time.

    `rows`: the engine's blocks. `slice_bytes`: of one of them, rounded up to 64: part p of an
    arena's block is the bytes from p * slice_bytes on. `layout_text`: the same for two tables
    only if their slices mean the same; it belongs into the identity's layout. `writable`: False
    where the memory can only be stored from.
    """

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError("Pages come from kvshm.paged.runs_of()")

    def __dealloc__(self):
        PyMem_Free(self.runs_)

    @property
    def runs(self):
        """(address, stride, bytes, offset): `bytes` at address + row * stride lie at `offset`."""
        cdef uint32_t i
        return [(self.runs_[i].address, self.runs_[i].stride, self.runs_[i].bytes,
                 self.runs_[i].offset) for i in range(self.table.nruns)]

    cdef kvshm_pages table_on(self, object stream) except *:
        cdef kvshm_pages table = self.table
        if stream is not None:
            stream = getattr(stream, "cuda_stream", stream)
            table.stream = <void *><uintptr_t>index(stream)
        return table

    def store(self, Fill fill, rows, part=0, stream=None, Py_ssize_t first=0):
        """Begin `part` of blocks first, first + 1 ... of the fill and copy the engine's `rows`
        into them: an int32 code each, 0 or negative (kvshm_pages.h says which). A block that
        failed is never published. Raises for what is wrong with all of them. Several threads may
        store into one Fill; it must not be finished or aborted meanwhile."""
        cdef kvshm_pages table = self.table_on(stream)
        cdef uint32_t c_part = as_number(part, "part")
        cdef Bytes c_rows, c_codes
        cdef uint32_t n
        cdef int64_t rc
        numbers = _row_numbers(rows)
        n = len(numbers)
        codes = np.zeros(n, np.int32)
        c_rows, c_codes = as_bytes(numbers, False), as_bytes(codes, True)
        fill.usable()
        _check_range(first, n, fill.handles_.n)
        stored = _stored(fill, c_part)
        with nogil:
            rc = kvshm_pages_store(fill.arena.ptr, &table, fill.handles_.ptr + first,
                                   <const uint32_t *>c_rows.ptr, n, c_part,
                                   <int32_t *>c_codes.ptr)
        if rc < 0:
            fail(rc, f"store {n} rows")
        np.minimum(stored[first:first + n], codes, out=stored[first:first + n])
        return codes

    def load(self, Lease lease, rows, part=0, stream=None, Py_ssize_t first=0):
        """Copy blocks first, first + 1 ... of the lease into the engine's `rows`: an int32 code
        each, 0 or negative. A row whose code is not 0 must not be used. The lease must stay until
        the copies are done."""
        cdef kvshm_pages table = self.table_on(stream)
        cdef uint32_t c_part = as_number(part, "part")
        cdef Bytes c_rows, c_codes
        cdef Handles handles
        cdef uint32_t n, i
        cdef int64_t rc
        if not self.writable:
            raise PermissionDenied("load: the memory of the layers cannot be written")
        numbers = _row_numbers(rows)
        n = len(numbers)
        codes = np.zeros(n, np.int32)
        c_rows, c_codes = as_bytes(numbers, False), as_bytes(codes, True)
        handles = new_handles(n)
        # No release in between: the number of a block's next life would pass for that of this one.
        with cython.critical_section(lease):
            lease.held()
            _check_range(first, n, lease.n)
            for i in range(n):
                # A miss of a scattered match stays without a life: -EINVAL.
                handles.ptr[i].id = lease.blocks[first + i]
                if handles.ptr[i].id != KVSHM_NONE:
                    kvshm_handle_of(lease.arena.ptr, handles.ptr[i].id, &handles.ptr[i])
        with nogil:
            rc = kvshm_pages_load(lease.arena.ptr, &table, handles.ptr,
                                  <const uint32_t *>c_rows.ptr, n, c_part,
                                  <int32_t *>c_codes.ptr)
        if rc < 0:
            fail(rc, f"load {n} rows")
        return codes

    def finish(self, Fill fill, part=0):
        """When all bytes of `part` are in place: say so for each block that was stored, publish
        those that are whole now, and give this process's memberships back; the Fill is over. An
        int32 code each: 0 = found by all, 1 = waits for other parts (whoever stores those must be
        a member by now), negative: the store or this step failed, or this Fill has not stored that
        part of the block; it will not be found."""
        cdef uint32_t c_part = as_number(part, "part")
        cdef Bytes c_codes
        cdef uint32_t first, n
        cdef bint was_open
        cdef int64_t rc
        with cython.critical_section(fill):
            was_open, fill.open_ = fill.open_, False
            first = fill.first
        if not was_open:
            raise Closed("this fill is over: registered, published or aborted")
        n = fill.handles_.n - first
        codes = _stored(fill, c_part)[first:].copy()
        c_codes = as_bytes(codes, True)
        with nogil:
            rc = kvshm_pages_finish(fill.arena.ptr, fill.handles_.ptr + first, n, c_part,
                                    <int32_t *>c_codes.ptr)
        if rc < 0:
            fail(rc, f"finish {n} blocks")
        return codes
