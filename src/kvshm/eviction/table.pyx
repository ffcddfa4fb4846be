# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""The shared block table as a read-only numpy array, one structured record a block."""
cimport cython
from cpython.buffer cimport PyBUF_WRITABLE

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport KVSHM_EFORKED, kvshm_block_record, kvshm_block_table
from kvshm.convert cimport fail

import numpy as np

BLOCK_DTYPE = np.dtype({
    "names": ["word", "key", "seq", "fut", "stamp", "parent", "parent_check", "child", "sibling",
              "tenant", "flags", "priority", "freq_depth"],
    "formats": ["u8", ("u8", 2), "u8", "u4", "u4", "u4", "u4", "u4", "u4", "u2", "u1", "u1", "u4"],
    "offsets": [0, 8, 24, 32, 36, 40, 44, 48, 52, 56, 58, 59, 60],
    "itemsize": 64,
})
"""One block of layout 1 (docs/protocol.md): `word` is the truth, the rest are hints.

word: holders in bits 0-47, state in 48-50 (kvshm.State), clock in 51-52, generation above.
stamp: arena tick of its last release to nobody; now - stamp (mod 2^32) is its age.
freq_depth: uses in bits 0-3, their epoch in 4-7, depth in the chain above.
parent, child, sibling: block ids, 0xffffffff for none. priority: 0-100, 100 is never
evicted; 128 more while it is for a while only.
"""
assert BLOCK_DTYPE.itemsize == sizeof(kvshm_block_record)
cdef object _PRIVATE = object()


@cython.final
@cython.no_gc_clear
cdef class BlockTable:
    """The mapping behind block_table(); close() of the arena waits for its end, as for a View."""

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError("use block_table()")

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        buffer.obj = None
        if flags & PyBUF_WRITABLE:
            raise BufferError("the block table is read-only")
        buffer.obj = self
        buffer.buf = <void *>self.records
        buffer.len = self.shape
        buffer.itemsize = 1
        buffer.readonly = True
        buffer.ndim = 1
        buffer.format = <char *>"B"
        buffer.shape = &self.shape
        buffer.strides = &self.stride
        buffer.suboffsets = NULL
        buffer.internal = NULL

    def __releasebuffer__(self, Py_buffer *buffer):
        pass

    def __dealloc__(self):
        if self.counted:
            self.arena.leave_view()


cdef BlockTable open_table(Attachment arena):
    cdef BlockTable table = BlockTable.__new__(BlockTable, _PRIVATE)
    arena.enter_view()
    table.arena = arena
    table.counted = True
    table.records = kvshm_block_table(arena.ptr, &table.n)
    if table.records is NULL:
        fail(-KVSHM_EFORKED, "block table")
    table.shape = <Py_ssize_t>(table.n * sizeof(kvshm_block_record))
    table.stride = 1
    return table


def block_table(Attachment arena not None):
    """All blocks, live: a read-only array of BLOCK_DTYPE, shape (arena.blocks,).

    Other processes write while you read: copy a field before you use it twice. The arena cannot be
    closed while the array lives.
    """
    return np.frombuffer(open_table(arena), BLOCK_DTYPE)
