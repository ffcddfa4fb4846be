# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""Python values to C arguments and C results to Python values."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from kvshm.ckvshm cimport kvshm_handle, kvshm_key


cdef class Keys:
    """Borrowed 16-byte keys; valid while this object lives."""
    cdef Py_buffer view
    cdef bint held
    cdef const kvshm_key *ptr
    cdef uint32_t n


cdef class Handles:
    """An array of handles of our own."""
    cdef kvshm_handle *ptr
    cdef uint32_t n


cdef class Bytes:
    """Borrowed contiguous memory; valid while this object lives."""
    cdef Py_buffer view
    cdef bint held
    cdef char *ptr
    cdef Py_ssize_t n


cdef Keys as_keys(object keys)
cdef Handles as_handles(object handles)
cdef Handles new_handles(Py_ssize_t n)
cdef Bytes as_bytes(object data, bint writable)
cdef kvshm_handle as_handle(object handle) except *
cdef object from_handle(kvshm_handle h)
cdef object handle_array(const kvshm_handle *h, uint32_t n)
cdef uint64_t as_size(object size, str what) except? 0xffffffffffffffff
cdef uint32_t as_number(object value, str what) except? 0xffffffff
cdef uint64_t as_tag(object tag) except? 0xffffffffffffffff
cdef object failure(int64_t rc, str what)
cdef int fail(int64_t rc, str what) except -1
cdef object no_space_in_time(str what, object timeout)
cdef uint64_t as_ms(object seconds, str what) except? 0xffffffffffffffff

# Time limits: a deadline in seconds, waited for in slices between which signals are handled.
cdef double now() noexcept nogil
cdef double deadline_in(object timeout) except? -1
cdef uint32_t slice_ms(double deadline) noexcept nogil
