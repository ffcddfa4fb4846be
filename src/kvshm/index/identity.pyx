# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Identity: what distinguishes one model's KV blocks from another's, and the keys of its blocks.

A key is 128 bits of a keyed hash over (identity, parent key, tokens, extra): equal in C, in Python
and in every process (docs/keys.md has the definition and test vectors).
"""
cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from kvshm.ckvshm cimport (KVSHM_EXTRA_ADAPTER, KVSHM_EXTRA_GROUP, KVSHM_EXTRA_MEDIA,
                           KVSHM_EXTRA_OTHER, KVSHM_EXTRA_SALT, KVSHM_UNKNOWN_WEIGHTS, kvshm_extra,
                           kvshm_extra_digest, kvshm_identity, kvshm_identity_derive,
                           kvshm_identity_init, kvshm_identity_text, kvshm_key,
                           kvshm_keys_hashes, kvshm_keys_tokens)
from kvshm.convert cimport Bytes, as_bytes, fail

import numpy as np

from kvshm.errors import InvalidArgument, wrong_size

_KINDS = {"adapter": KVSHM_EXTRA_ADAPTER, "media": KVSHM_EXTRA_MEDIA, "group": KVSHM_EXTRA_GROUP,
          "other": KVSHM_EXTRA_OTHER, "salt": KVSHM_EXTRA_SALT}


@cython.final
cdef class Identity:
    """Model, weights, dtype, layout and the rest; frozen, equal and hashed by its fields.

    model: a name. weights: a fingerprint of them, such as the digest of their files: without one
    two sets of weights would share blocks, so an empty or unknown one is refused unless
    allow_unknown_weights says that it may be (that is part of no key, and not compared). dtype,
    layout: of the KV. block_tokens: tokens a block, a power of two up to 1024. parallel: the shape,
    such as "tp=2". namespace
    and its epoch: blocks of another namespace, or of an older epoch of this one, are not found.
    """

    def __init__(self, *, model, weights="", dtype="bfloat16", layout="BLHNC", block_tokens=16,
                 parallel="", namespace="", epoch=0, allow_unknown_weights=False):
        if self.text is not None:
            raise TypeError("an Identity is frozen")
        for name, value in (("model", model), ("weights", weights), ("dtype", dtype),
                            ("layout", layout), ("parallel", parallel), ("namespace", namespace)):
            if not isinstance(value, str) or "\0" in value:
                raise InvalidArgument(f"identity: {name}: expected text, got {value!r}")
        if not model:
            raise InvalidArgument("identity: model must not be empty")
        if not isinstance(block_tokens, int) or not 1 <= block_tokens <= 0xffffffff:
            raise InvalidArgument(
                f"identity: block_tokens: expected 1 or more, got {block_tokens!r}")
        if not isinstance(epoch, int) or not 0 <= epoch <= 0xffffffff:
            raise InvalidArgument(f"identity: epoch: expected 0 to 2^32-1, got {epoch!r}")
        self.model, self.weights, self.dtype, self.layout = model, weights, dtype, layout
        self.parallel, self.namespace = parallel, namespace
        self.block_tokens, self.epoch = block_tokens, epoch
        self.allow_unknown_weights = bool(allow_unknown_weights)
        self._derive()

    def _derive(self):
        cdef kvshm_identity c = kvshm_identity_init()
        cdef Bytes room
        cdef int64_t rc = 0
        fields = [f.encode() for f in (self.model, self.weights, self.dtype, self.layout,
                                       self.parallel, self.namespace)]
        model, weights, dtype, layout, parallel, space = fields
        c.model, c.weights, c.dtype, c.layout = model, weights, dtype, layout
        c.parallel, c.space = parallel, space
        c.block_tokens, c.epoch = self.block_tokens, self.epoch
        c.flags = KVSHM_UNKNOWN_WEIGHTS if self.allow_unknown_weights else 0
        rc = kvshm_identity_derive(&c, self.secret, self.mark)
        if rc < 0:
            fail(rc, "identity")
        text = bytearray(8192)
        room = as_bytes(text, True)
        rc = kvshm_identity_text(&c, room.ptr, room.n)
        if rc < 0:
            fail(rc, "identity as text")
        self.text = text[:rc].decode()

    @property
    def key(self):
        """32 bytes: what all keys of this identity are hashed under."""
        return (<char *>self.secret)[:32]

    @property
    def fingerprint(self):
        """16 bytes; what arenas are compared by. The epoch is not part of it."""
        return (<char *>self.mark)[:16]

    def with_epoch(self, epoch):
        """This identity in another epoch: other keys, the same arena. Itself if it has it."""
        if epoch == self.epoch:
            return self
        return _rebuild(*self._fields()[:-1], epoch, self.allow_unknown_weights)

    def _fields(self):
        return (self.model, self.weights, self.dtype, self.layout, self.block_tokens,
                self.parallel, self.namespace, self.epoch)

    def __eq__(self, other):
        if not isinstance(other, Identity):
            return NotImplemented
        return self._fields() == (<Identity>other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __reduce__(self):
        return _rebuild, (*self._fields(), self.allow_unknown_weights)

    def __repr__(self):
        model, weights, dtype, layout, block_tokens, parallel, namespace, epoch = self._fields()
        allowed = ", allow_unknown_weights=True" if self.allow_unknown_weights else ""
        return (f"Identity({model=}, {weights=}, {dtype=}, {layout=}, {block_tokens=}, "
                f"{parallel=}, {namespace=}, {epoch=}{allowed})")

    cdef int digest(self, object salt, object extra, uint8_t *out) except -1:
        """1 and the digest of what else tells blocks apart; 0 if nothing does."""
        cdef kvshm_extra items[64]
        cdef Bytes data
        cdef size_t n = 0
        cdef int rc
        pairs = [] if salt is None else [(KVSHM_EXTRA_SALT, salt)]
        if isinstance(extra, dict):
            pairs += [(_kind(k), v) for k, v in extra.items()]
        elif isinstance(extra, (list, tuple)):
            pairs += [(_kind(k), v) for k, v in extra]
        elif extra is not None and as_octets(extra, "extra").n:
            pairs.append((KVSHM_EXTRA_OTHER, extra))
        if not pairs:
            return 0
        if len(pairs) > 64:
            raise InvalidArgument(f"extra: {len(pairs)} items, at most 64")
        kept = []
        for kind, value in pairs:
            data = as_octets(value.encode() if isinstance(value, str) else value, "salt or extra")
            kept.append(data)
            items[n].type = kind
            items[n].length = <uint32_t>data.n
            items[n].data = data.ptr
            n += 1
        rc = kvshm_extra_digest(self.secret, items, n, out)
        if rc < 0:
            fail(rc, "extra")
        return 1

    def extra_digest(self, salt=None, extra=b""):
        """The 16 bytes that stand for salt and extra in a key; 16 zeros for none (docs/keys.md)."""
        cdef uint8_t out[16]
        if not self.digest(salt, extra, out):
            return bytes(16)
        return (<char *>out)[:16]

    def keys(self, tokens, salt=None, extra=b"", parent=None):
        """One key per full block of `tokens`, chained: (n, 16) uint8.

        tokens: ids from 0 to 2^32-1, as an integer array of any width, a list, or a torch tensor in
        host memory; what does not fill a block has no key. salt: a tenant's, text or bytes. extra:
        bytes, or {"adapter" | "media" | "group" | "other": bytes}, or pairs of these. parent: the
        key before the first block. InvalidArgument names the position of an id out of range.
        """
        cdef Tokens given = as_tokens(tokens)
        cdef uint8_t c_extra[16]
        cdef const uint8_t *e = NULL
        cdef const uint8_t *p = NULL
        cdef Bytes above, room
        cdef int64_t n
        if self.digest(salt, extra, c_extra):
            e = c_extra
        if parent is not None:
            above = as_octets(parent, "parent key")
            if above.n != 16:
                raise wrong_size("parent key: bytes", 16, above.n)
            p = <const uint8_t *>above.ptr
        out = np.empty((given.n // self.block_tokens, 16), np.uint8)
        room = as_bytes(out, True)
        with nogil:
            n = kvshm_keys_tokens(self.secret, e, p, given.ptr, given.n, self.block_tokens,
                                  <kvshm_key *>room.ptr, given.n // self.block_tokens)
        if n < 0:
            fail(n, f"keys of {given.n} tokens")
        return out

    def keys_from_hashes(self, hashes, salt=None, extra=b""):
        """Keys from an engine's own block hashes, bound to this identity: (n, 16) uint8.

        hashes: (n, k) uint8, or a list of n byte strings of one length. Chaining is the engine's
        business: equal hashes give equal keys.
        """
        cdef uint8_t c_extra[16]
        cdef const uint8_t *e = NULL
        cdef Bytes data, room
        cdef size_t length, count
        cdef int64_t n
        if isinstance(hashes, (list, tuple)):
            count = len(hashes)
            length = len(hashes[0]) if count else 1
            for i, item in enumerate(hashes):
                if <size_t>len(item) != length:
                    raise wrong_size(f"hash {i}: bytes", length, len(item))
            data = as_bytes(b"".join(bytes(item) for item in hashes), False)
        else:
            array = np.asarray(hashes)
            if array.dtype.itemsize != 1 or array.ndim != 2:
                raise InvalidArgument(
                    f"hashes: expected (n, k) uint8, got {array.dtype} {array.shape}")
            count, length = array.shape
            data = as_bytes(np.ascontiguousarray(array), False)
        if self.digest(salt, extra, c_extra):
            e = c_extra
        out = np.empty((count, 16), np.uint8)
        if not count:
            return out
        room = as_bytes(out, True)
        with nogil:
            n = kvshm_keys_hashes(self.secret, e, data.ptr, length, count, <kvshm_key *>room.ptr)
        if n < 0:
            fail(n, f"keys of {count} hashes")
        return out


cdef Bytes as_octets(object value, str what):
    """Bytes as they are. Of a number or a text they depend on width, order and encoding, of other
    objects on where they lie: two processes would compute different keys."""
    try:
        plain = memoryview(value).itemsize == 1
    except TypeError:
        plain = False
    if not plain:
        raise InvalidArgument(f"{what}: expected bytes, got {type(value).__name__}")
    return as_bytes(value, False)


def _rebuild(model, weights, dtype, layout, block_tokens, parallel, namespace, epoch, allowed):
    return Identity(model=model, weights=weights, dtype=dtype, layout=layout,
                    block_tokens=block_tokens, parallel=parallel, namespace=namespace, epoch=epoch,
                    allow_unknown_weights=allowed)


def _kind(kind):
    if isinstance(kind, int):
        if not 1 <= kind <= 0xffffffff:
            raise InvalidArgument(f"extra: type {kind}: expected 1 to 2^32-1")
        return kind
    if kind not in _KINDS:
        raise InvalidArgument(f"extra: expected one of {sorted(_KINDS)} or a number, got {kind!r}")
    return _KINDS[kind]


@cython.final
cdef class Tokens:
    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


ctypedef fused integer:
    signed char
    short
    int
    long
    unsigned char
    unsigned short
    unsigned int
    unsigned long


cdef Py_ssize_t _narrow(const integer *src, uint32_t *dst, Py_ssize_t n) noexcept nogil:
    """Copy; the index of the first id out of range, or n."""
    cdef Py_ssize_t i
    for i in range(n):
        if <uint64_t><int64_t>src[i] >> 32:  # a negative id has its high bits set
            return i
        dst[i] = <uint32_t>src[i]
    return n


cdef Tokens as_tokens(object tokens):
    """Token ids as uint32 in one piece; without a copy if that is what they are."""
    cdef Tokens out = Tokens.__new__(Tokens)
    cdef Bytes source, room
    cdef Py_ssize_t n, bad
    cdef char kind
    array = _plain(tokens) if type(tokens) is list else None
    if array is None:
        array = np.asarray(tokens)
    if array.size == 0:
        array = np.empty(0, np.uint32)
    elif array.dtype.kind not in "iu":
        array = _integers(array)
    if array.ndim != 1:
        raise InvalidArgument(f"tokens: expected one dimension, got shape {array.shape}")
    if array.dtype != np.uint32 or not array.dtype.isnative:
        source = as_bytes(np.ascontiguousarray(array, array.dtype.newbyteorder("=")), False)
        narrow = np.empty(array.size, np.uint32)
        room = as_bytes(narrow, True)
        n = array.size
        kind = ord(array.dtype.char)
        with nogil:
            if kind == c"b":
                bad = _narrow(<signed char *>source.ptr, <uint32_t *>room.ptr, n)
            elif kind == c"h":
                bad = _narrow(<short *>source.ptr, <uint32_t *>room.ptr, n)
            elif kind == c"i":
                bad = _narrow(<int *>source.ptr, <uint32_t *>room.ptr, n)
            elif kind == c"l" or kind == c"q":
                bad = _narrow(<long *>source.ptr, <uint32_t *>room.ptr, n)
            elif kind == c"B":
                bad = _narrow(<unsigned char *>source.ptr, <uint32_t *>room.ptr, n)
            elif kind == c"H":
                bad = _narrow(<unsigned short *>source.ptr, <uint32_t *>room.ptr, n)
            elif kind == c"I":
                bad = _narrow(<unsigned int *>source.ptr, <uint32_t *>room.ptr, n)
            else:
                bad = _narrow(<unsigned long *>source.ptr, <uint32_t *>room.ptr, n)
        if bad < n:
            raise InvalidArgument(
                f"tokens[{bad}] = {array[bad]}: expected an id from 0 to 2^32-1")
        array = narrow
    array = np.ascontiguousarray(array)
    PyObject_GetBuffer(array, &out.view, PyBUF_C_CONTIGUOUS)
    out.held = True
    out.array = array
    out.ptr = <const uint32_t *>out.view.buf
    out.n = array.size
    return out


cdef object _plain(list tokens):
    """Ids as engines hold them, in a quarter of numpy's time. None if one of them is no plain
    number or out of range: the long way then says which."""
    cdef Py_ssize_t i = 0, n = len(tokens)
    cdef Bytes room
    cdef uint32_t *to
    cdef long long value
    cdef int overflow = 0
    if n == 0:
        return None
    out = np.empty(n, np.uint32)
    room = as_bytes(out, True)
    to = <uint32_t *>room.ptr
    for token in tokens:
        if i == n or not PyLong_CheckExact(token):  # another thread may have made it longer
            return None
        value = PyLong_AsLongLongAndOverflow(token, &overflow)
        if overflow or value >> 32:
            return None
        to[i] = <uint32_t>value
        i += 1
    return out if i == n else None


def _integers(array):
    """What numpy made of a list with ids beyond 64 bits, or of something that holds no ids."""
    if array.dtype.kind == "O" and array.ndim == 1:
        for i, token in enumerate(array):
            if not isinstance(token, int):
                raise InvalidArgument(f"tokens[{i}]: expected a number, got {token!r}")
            if not 0 <= token <= 0xffffffff:
                raise InvalidArgument(f"tokens[{i}] = {token}: expected an id from 0 to 2^32-1")
        return array.astype(np.uint32)
    raise InvalidArgument(f"tokens: expected integers, got {array.dtype}")
