# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""One block in each stage of its life, as a Python object that cannot be used in the wrong stage.

MutableBlock -stage-> CompleteBlock -register-> ImmutableBlock <-downgrade, upgrade-> WeakBlock

A step forward uses up the object it is called on. A step that is refused raises and leaves it as
it was. A guard that dies gives its block back: what was not registered becomes free.
"""
cimport cython
from libc.errno cimport ENOENT
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_ALLOW, KVSHM_EPENDING, KVSHM_NO_TOUCH, KVSHM_REJECT, kvshm_abort,
                           kvshm_drop, kvshm_handle, kvshm_key, kvshm_register,
                           kvshm_set_no_cache, kvshm_set_priority_for, kvshm_upgrade)
from kvshm.convert cimport (Bytes, Handles, Keys, as_bytes, as_handle, as_keys, as_ms, as_number,
                            fail, from_handle, new_handles)
from kvshm.fill cimport Fill
from kvshm.lease cimport Lease
from kvshm.views cimport view_fill, view_held

from kvshm.errors import InvalidArgument, Misuse, wrong_size
from kvshm.records import Status

cdef object _PRIVATE = object()
_POLICIES = {"allow": KVSHM_ALLOW, "reject": KVSHM_REJECT}


@cython.no_gc_clear
cdef class Guard:
    """What the guards have in common: a block that is owned, until it is handed on."""

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError(f"{type(self).__name__}: see mutable_blocks() and match_blocks()")

    cdef int own(self, Attachment arena, kvshm_handle h) except -1:
        self.arena = arena
        self.h = h
        self.owned = True
        return 0

    cdef int need(self, str what) except -1:
        if not self.owned:
            raise Misuse(f"{what}: this {type(self).__name__} was used up or released")
        self.arena.alive()
        return 0

    cdef kvshm_handle take(self) noexcept:
        """End this guard's ownership; seq 0 if it had ended before."""
        cdef kvshm_handle h
        with cython.critical_section(self):
            h = self.h
            if not self.owned:
                h.seq = 0
            self.owned = False
        return h

    cdef void give_back(self, kvshm_handle h) noexcept:
        cdef Attachment arena = self.arena
        cdef bint filling = self.filling
        with nogil:
            if filling:
                kvshm_abort(arena.ptr, &h, 1)
            else:
                kvshm_drop(arena.ptr, &h, 1)

    def release(self):
        """Give it back: what is not registered becomes free, what is stays cached. A second call
        does nothing."""
        cdef kvshm_handle h = self.take()
        if h.seq:
            self.give_back(h)

    def __dealloc__(self):
        if self.owned:
            self.owned = False
            self.give_back(self.h)

    @property
    def id(self):
        """Id of the block."""
        return self.h.id

    @property
    def handle(self):
        """(id, life number) of the block."""
        return from_handle(self.h)

    @property
    def usable(self):
        """False when it was used up or released."""
        return self.owned

    def __enter__(self):
        self.need("with")
        return self

    def __exit__(self, *exc):
        self.release()

    def __repr__(self):
        state = "" if self.owned else ", used up"
        return f"<kvshm.{type(self).__name__} {self.h.id}, life {self.h.seq}{state}>"


@cython.no_gc_clear
cdef class FillGuard(Guard):
    """A block that is still being written."""

    def __cinit__(self, token=None):
        self.filling = True

    def view(self):
        """Its bytes, writable."""
        self.need("view")
        return view_fill(self.arena, self.h)


@cython.final
@cython.no_gc_clear
cdef class MutableBlock(FillGuard):
    """Allocated, being written."""

    def stage(self, key=None, *, tokens=None, payload=None, parent=None, salt=None):
        """Its content is settled: the CompleteBlock, for registration under `key` (16 bytes).

        In place of key: `tokens`, a full block of them, hashed after the key `parent` with the
        identity that the arena was opened with. `payload`: all bytes of the block, copied in.
        A wrong size raises InvalidArgument with `expected` and `actual`; the block stays usable.
        """
        cdef Keys c_key
        cdef Bytes data
        cdef CompleteBlock done
        self.need("stage")
        if (key is None) == (tokens is None):
            raise InvalidArgument("stage: give either a key or tokens")
        if tokens is not None:
            key = self._key_of(tokens, parent, salt)
        c_key = as_keys([key])
        if payload is not None:
            data = as_bytes(payload, False)
            if data.n != <Py_ssize_t>self.arena.block_bytes:
                raise wrong_size("stage: bytes of payload", self.arena.block_bytes, data.n)
            with view_fill(self.arena, self.h) as view:
                view[:] = payload
        done = CompleteBlock.__new__(CompleteBlock, _PRIVATE)
        memcpy(done.key_, c_key.ptr, sizeof(done.key_))
        if not self.take().seq:
            raise Misuse("stage: another thread staged this block")
        done.own(self.arena, self.h)
        return done

    def _key_of(self, tokens, parent, salt):
        identity = self.arena.identity
        if identity is None:
            raise Misuse("stage: this arena was opened without an identity; give a key")
        if len(tokens) != identity.block_tokens:
            raise wrong_size("stage: tokens of a block", identity.block_tokens, len(tokens))
        return bytes(identity.keys(tokens, salt=salt, parent=parent)[0])


@cython.final
@cython.no_gc_clear
cdef class CompleteBlock(FillGuard):
    """Staged: its key is known, nobody sees it yet."""

    @property
    def key(self):
        """The 16 bytes it will be found by."""
        return (<char *>self.key_)[:16]

    def reset(self):
        """Back to a MutableBlock of the same id, to be written or staged anew."""
        cdef MutableBlock block
        self.need("reset")
        block = MutableBlock.__new__(MutableBlock, _PRIVATE)
        if not self.take().seq:
            raise Misuse("reset: another thread used this block up")
        block.own(self.arena, self.h)
        return block

    def register(self, policy="allow"):
        """Make it visible: the ImmutableBlock. Where the key is present already, "allow" keeps
        this block beside that one, "reject" closes this one and returns that one."""
        return register_blocks([self], policy)[0]


@cython.final
@cython.no_gc_clear
cdef class ImmutableBlock(Guard):
    """Registered: shared, read-only, held. `status` is what became of it at its registration."""

    def view(self):
        """Its bytes, read-only; they stay as long as the View does."""
        self.need("view")
        return view_held(self.arena, self.h)

    def clone(self):
        """Another hold of the same block."""
        self.need("clone")
        block = _upgrade(self.arena, self.h, KVSHM_NO_TOUCH)
        if block is None:
            raise Misuse(f"block {self.h.id}: its primary is no longer held")
        return block

    def downgrade(self):
        """Give the hold back and keep a WeakBlock, which upgrade() makes strong again."""
        weak = self.weak()
        self.release()
        return weak

    def weak(self):
        """A WeakBlock beside this one."""
        cdef WeakBlock weak = WeakBlock.__new__(WeakBlock, _PRIVATE)
        self.need("weak")
        weak.arena, weak.h = self.arena, self.h
        return weak

    def set_no_cache(self, on=True):
        """Free it at its last release, or keep it cached; the last writer among holders wins."""
        cdef int rc
        self.need("set_no_cache")
        rc = kvshm_set_no_cache(self.arena.ptr, self.h, bool(on))
        if rc < 0:
            fail(rc, f"no-cache of block {self.h.id}")

    def set_priority(self, priority, seconds=None):
        """0-100; 100 is never evicted. With `seconds`, the default returns after that time."""
        cdef uint32_t c_priority = as_number(priority, "priority")
        cdef uint64_t ms = as_ms(seconds, "seconds")
        cdef int rc
        self.need("set_priority")
        rc = kvshm_set_priority_for(self.arena.ptr, self.h, c_priority, ms)
        if rc < 0:
            fail(rc, f"priority of block {self.h.id}")


@cython.final
cdef class WeakBlock:
    """Remembers a block without keeping it."""

    def __cinit__(self, token=None):
        if token is not _PRIVATE:
            raise TypeError("a WeakBlock comes from ImmutableBlock.downgrade()")

    @property
    def handle(self):
        """(id, life number) of the block."""
        return from_handle(self.h)

    def upgrade(self, *, touch=True):
        """The ImmutableBlock again, or None if that life of the block is over."""
        self.arena.alive()
        return _upgrade(self.arena, self.h, 0 if touch else KVSHM_NO_TOUCH)

    def __repr__(self):
        return f"<kvshm.WeakBlock {self.h.id}, life {self.h.seq}>"


cdef object _upgrade(Attachment arena, kvshm_handle h, uint32_t flags):
    cdef ImmutableBlock block
    cdef int rc
    with nogil:
        rc = kvshm_upgrade(arena.ptr, h, flags)
    if rc == -ENOENT or rc == -KVSHM_EPENDING:
        return None
    if rc < 0:
        fail(rc, f"upgrade of block {h.id}")
    block = ImmutableBlock.__new__(ImmutableBlock, _PRIVATE)
    block.own(arena, h)
    return block


def mutable_blocks(arena, n=1, **options):
    """n MutableBlocks, all or none; `options` as for Arena.allocate (not keys)."""
    cdef Fill fill
    cdef MutableBlock block
    if "keys" in options:
        raise InvalidArgument("mutable_blocks: keys are given at stage()")
    fill = arena.allocate(n, **options)
    blocks = []
    for _i in range(len(fill)):
        block = MutableBlock.__new__(MutableBlock, _PRIVATE)
        blocks.append(block)
    for i, made in enumerate(blocks):
        block = made
        block.own(fill.arena, fill.handles_.ptr[i])
    fill.open_ = False  # the guards own its memberships now
    return blocks


def register_blocks(blocks, policy="allow"):
    """Register CompleteBlocks in order, which uses them up: a list of ImmutableBlocks.

    On an error those before the failing one are registered and released, the others stay usable.
    """
    cdef list given = list(blocks)
    cdef Handles out
    cdef CompleteBlock block
    cdef ImmutableBlock done
    cdef Attachment arena = None
    cdef uint8_t result = 0
    cdef int64_t rc = 0
    cdef int c_policy
    if policy not in _POLICIES:
        raise InvalidArgument(f"policy: expected 'allow' or 'reject', got {policy!r}")
    c_policy = _POLICIES[policy]
    out = new_handles(len(given))
    registered = []
    for block in given:
        block.need("register")
    for block in given:
        arena = block.arena
        out.ptr[0] = block.take()
        if not out.ptr[0].seq:
            raise Misuse("register: the same block twice")
        with nogil:
            rc = kvshm_register(arena.ptr, out.ptr, 1, <const kvshm_key *>&block.key_, c_policy,
                                out.ptr, &result)
        if rc < 0:
            block.owned = True
            fail(rc, f"register block {block.h.id}")
        done = ImmutableBlock.__new__(ImmutableBlock, _PRIVATE)
        done.own(arena, out.ptr[0])
        done.status = Status(result)
        registered.append(done)
    return registered


def match_blocks(arena, keys, *, touch=True, load=None):
    """The longest prefix of `keys` that is READY, as a list of ImmutableBlocks. load: seconds for
    which what is on disk is waited for; what has not come by then is a miss."""
    cdef Lease lease
    with arena.match(keys, touch=touch, load=load is not None) as found:
        lease = found
        if load is not None:
            lease.wait(load)
        return [_upgrade(lease.arena, as_handle(h), KVSHM_NO_TOUCH) for h in lease.handles]
