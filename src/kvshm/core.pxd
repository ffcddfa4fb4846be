# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""`from kvshm.core cimport Arena`: arena.ptr is the kvshm_arena for kvshm.ckvshm's functions."""
from kvshm.attach cimport Attachment
from kvshm.lease cimport Lease


cdef class Arena(Attachment):
    cdef Lease find(self, object keys, bint touch, object tag, int how=*)
    cdef Lease find_loading(self, object keys, bint touch, object tag)
