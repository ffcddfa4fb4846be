# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Keys of a sequence that grows: each token is hashed once, however it arrives."""
cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kvshm.ckvshm cimport kvshm_key, kvshm_keys_tokens
from kvshm.convert cimport Bytes, as_bytes, fail
from kvshm.index.identity cimport Identity, Tokens, as_octets, as_tokens

import numpy as np

from kvshm.errors import wrong_size


@cython.final
cdef class KeyChain:
    """The keys of one sequence under one identity, salt and extra (as for Identity.keys).

    extend() takes tokens as they come, a prompt or one at a time, and returns the keys of the
    blocks that they completed. One thread at a time.
    """

    def __cinit__(self, Identity identity not None, salt=None, extra=b"", parent=None):
        cdef Bytes above
        self.identity = identity
        self.has_extra = identity.digest(salt, extra, self.extra)
        if parent is not None:
            above = as_octets(parent, "parent key")
            if above.n != 16:
                raise wrong_size("parent key: bytes", 16, above.n)
            memcpy(self.parent, above.ptr, 16)
            self.has_parent = True
        self.rest = <uint32_t *>PyMem_Malloc(identity.block_tokens * sizeof(uint32_t))
        if self.rest is NULL:
            raise MemoryError()

    def __dealloc__(self):
        PyMem_Free(self.rest)
        PyMem_Free(self.out)

    cdef int grow(self, Py_ssize_t more) except -1:
        cdef uint8_t *larger
        cdef Py_ssize_t room
        if self.n + more <= self.room:
            return 0
        room = max(2 * self.room, self.n + more, 64)
        larger = <uint8_t *>PyMem_Realloc(self.out, room * 16)
        if larger is NULL:
            raise MemoryError()
        self.out, self.room = larger, room
        return 0

    def extend(self, tokens):
        """Append tokens; the keys of the blocks that are full now and were not before: (k, 16)."""
        cdef Tokens given = as_tokens(tokens)
        cdef uint32_t size = self.identity.block_tokens
        cdef Py_ssize_t before = self.n
        cdef size_t used = 0, full
        with cython.critical_section(self):
            if self.nrest:
                used = min(given.n, <size_t>(size - self.nrest))
                memcpy(self.rest + self.nrest, given.ptr, used * sizeof(uint32_t))
                self.nrest += <uint32_t>used
                if self.nrest == size:
                    self.hash_blocks(self.rest, size)
                    self.nrest = 0
            if not self.nrest:
                full = (given.n - used) // size * size
                if full:
                    self.hash_blocks(given.ptr + used, full)
                    used += full
                self.nrest = <uint32_t>(given.n - used)
                memcpy(self.rest, given.ptr + used, self.nrest * sizeof(uint32_t))
            return self.copy_from(before)

    cdef int hash_blocks(self, const uint32_t *tokens, size_t count) except -1:
        """Append the keys of whole blocks of tokens."""
        cdef const uint8_t *above = NULL
        cdef const uint8_t *extra = NULL
        cdef uint32_t size = self.identity.block_tokens
        cdef uint8_t *out
        cdef int64_t rc
        if self.has_extra:
            extra = self.extra
        self.grow(count // size)
        out = self.out + self.n * 16
        if self.n:
            above = out - 16
        elif self.has_parent:
            above = self.parent
        with nogil:
            rc = kvshm_keys_tokens(self.identity.secret, extra, above, tokens, count, size,
                                   <kvshm_key *>out, count // size)
        if rc < 0:
            fail(rc, f"keys of {count} tokens")
        self.n += rc
        return 0

    cdef object copy_from(self, Py_ssize_t start):
        cdef Bytes room
        out = np.empty((self.n - start, 16), np.uint8)
        if self.n > start:
            room = as_bytes(out, True)
            memcpy(room.ptr, self.out + start * 16, (self.n - start) * 16)
        return out

    @property
    def keys(self):
        """Keys of all full blocks so far: (n, 16) uint8, a copy."""
        return self.copy_from(0)

    @property
    def tokens(self):
        """Number of tokens so far."""
        return self.n * self.identity.block_tokens + self.nrest

    @property
    def tail(self):
        """The tokens behind the last full block: uint32, fewer than block_tokens."""
        cdef uint32_t i
        return np.array([self.rest[i] for i in range(self.nrest)], np.uint32)

    def __len__(self):
        return self.n

    def __repr__(self):
        return f"<kvshm.KeyChain of {self.n} keys and {self.nrest} tokens>"
