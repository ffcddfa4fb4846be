# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Arena: each method converts, makes one call without the GIL, and wraps what came back.

Rules for all of them. Threads: any method from any thread at any time. Fork: in a forked child
every call raises kvshm.Forked; open the arena anew. Time: what can wait takes a `timeout` in
seconds and runs signal handlers at least every 100 ms. Keys: (n, 16) uint8, or a list of bytes.
"""
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EBUSY, ENOENT, ETIMEDOUT
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_EPENDING, KVSHM_NONE, KVSHM_NO_BUDGET, KVSHM_NO_CACHE,
                           KVSHM_NO_EVICT, KVSHM_NO_TOUCH, KVSHM_QUIET, KVSHM_UNCHAINED,
                           kvshm_acquire, kvshm_bump_epoch, kvshm_cancel_waits, kvshm_clear,
                           kvshm_evict, kvshm_handle, kvshm_lease, kvshm_load,
                           kvshm_match_load, kvshm_match_scattered, kvshm_match_with,
                           kvshm_pin, kvshm_presence, kvshm_reap,
                           kvshm_reap_report, kvshm_reset_inactive, kvshm_ring_guard, kvshm_scan,
                           kvshm_set_no_cache, kvshm_set_pin_budget, kvshm_set_priority_for,
                           kvshm_set_tenant, kvshm_space_epoch, kvshm_tenant_number, kvshm_tick,
                           kvshm_upgrade, kvshm_wait)
from kvshm.convert cimport (Bytes, Handles, Keys, as_bytes, as_handle, as_handles, as_keys,
                            as_ms, as_number, as_tag, deadline_in, fail, from_handle, now, slice_ms)
from kvshm.fill cimport allocate_fill, join_fill
from kvshm.lease cimport Lease, begin_lease, begin_load, lease_of_holds, new_lease
from kvshm.objects cimport create_object, get_object, put_object

import numpy as np

from kvshm import introspect, registration, tier as tier_of
from kvshm.attach import connect
from kvshm.errors import Busy, InvalidArgument
from kvshm.records import ReapReport

cdef enum:
    PREFIX, SCATTERED, DISTINCT
_FINDING = ("match", "scattered match", "scan")


def _begin(cls, mode, name="auto", *, tier, tier_size, tier_options, timeout, **options):
    """A new arena object, with its tier; nothing is left attached where that fails."""
    wanted = tier_of.parse(tier, tier_size, tier_options)
    arena = connect(cls, mode, name, timeout, **options)
    if wanted is not None:
        try:
            tier_of.join(arena, wanted)
        except BaseException:
            arena.close()
            raise
    return arena


cdef class Arena(Attachment):
    """One host's KV cache, as this process is attached to it.

    `name`, `path`, `block_bytes`, `blocks`, `slot` and `identity` (as given at opening) are fixed
    for its life. Leave it with close() or a with block; the arena itself, and what is cached in it,
    stays until `kvshm.remove`.
    """

    @classmethod
    def open(cls, name="auto", *, size=0, block_bytes=0, identity=None, dir=None, blocks=0,
             label=None, group=None, pin="auto", huge="auto", numa="auto", helper=True,
             reap_interval=0.5, quota=0, timeout=10.0, tier=None, tier_size=0, tier_options=None):
        """Attach to the arena `name`, or create it if there is none.

        name: [a-z0-9][a-z0-9_-]*, or "auto": this user and this identity.
        size, block_bytes: bytes, or text like "8GiB"; size is that of the whole object, and may be
        left 0 where `blocks` is given. block_bytes is a multiple of 64; 0 = whatever is there, or
        blocks without data. dir: a tmpfs or hugetlbfs directory in place of the shm mount.
        label: this process's name in the inspector. group: share with this group (mode 0660).
        pin, huge: "auto" tries, "require" raises Unsupported, "off". numa: "auto", "interleave" or
        a node. helper: a thread that gives back what dead processes held, every `reap_interval`
        seconds; without it call tick() about twice a second. quota: blocks that this process may
        hold or fill at once, 0 = no limit; beyond it OverQuota, a NoSpace. A look-up of many keys
        holds what fits, and raises only if that is nothing.

        tier: the NVMe tier, which keeps blocks on disk and over restarts: a file, or one per
        device, striped; made if absent. tier_size: bytes of all of them, 0 = what is there. Each
        process that stores or loads by it names it; does not wait for what a file of before holds
        to be read back. tier_options, a dict: engine "auto", "io_uring" or "threads"; direct, past
        the page cache, "auto", "require" or "off"; sync=True: a block found on disk survives a
        power cut (else it may be a miss after one); write "through" (each block that this process
        registers goes down), "lazy" (gathered: until `gather` bytes, 64 MiB, wait, or the oldest
        `age` seconds, 1, or tier_flush()), "idle" (gathered until tier_flush()), "release" (when it
        is given back), "watermark" (while less than the share `low`, 0.25, of the blocks is free:
        what would be evicted next), or "off" (see tier_store); mover "auto" (this process moves
        blocks for all when it is elected) or "off" (never; somebody else must, `kvshm agent`);
        admit: offers of a key before it is written; min_prefix, min_priority: blocks nearer to the
        head of their chain, or of a lower priority, are not written for their own sake; queue:
        blocks that may wait to be written; stores: that may be written at once, 16; deadline:
        seconds after which a transfer counts as stalled; min_speed: bytes a second, or text like
        "800MiB", that computing the blocks anew would make: a slower tier is not loaded from.

        Raises IdentityMismatch, LayoutMismatch (also another block size, or what is no tier file),
        ArenaNotReady, NoSlot, NoSpace (the mount or the disk is too small), Busy (the file belongs
        to another arena), PermissionDenied, Unsupported.
        """
        return _begin(cls, "open", name, timeout=timeout, size=size, block_bytes=block_bytes,
                      identity=identity, dir=dir, blocks=blocks, label=label, group=group,
                      pin=pin, huge=huge, numa=numa, helper=helper, reap_interval=reap_interval,
                      quota=quota, tier=tier, tier_size=tier_size, tier_options=tier_options)

    @classmethod
    def create(cls, name="auto", **options):
        """As open(), but ArenaExists if there is one."""
        return _begin(cls, "create", name, **Arena.open.__kwdefaults__ | options)

    @classmethod
    def attach(cls, name="auto", **options):
        """As open(), but ArenaNotFound if there is none."""
        return _begin(cls, "attach", name, **Arena.open.__kwdefaults__ | options)

    # Finding and holding

    cdef Lease find(self, object keys, bint touch, object tag, int how=PREFIX):
        cdef Keys wanted = as_keys(keys)
        cdef uint64_t number = as_tag(tag)
        cdef uint32_t flags = 0 if touch else KVSHM_NO_TOUCH
        cdef kvshm_lease token = 0
        cdef kvshm_handle pending
        cdef Bytes which
        cdef uint32_t *firsts = NULL
        cdef int64_t n
        cdef Lease lease
        self.alive()
        lease = new_lease(self, tag, wanted.n)
        pending.seq = 0
        if how == DISTINCT:
            first = np.empty(wanted.n, np.uint32)
            which = as_bytes(first, True)
            firsts = <uint32_t *>which.ptr
        with nogil:
            if how == PREFIX:
                n = kvshm_match_with(self.ptr, wanted.ptr, wanted.n, flags, number, lease.blocks,
                                     &token, &pending)
            elif how == SCATTERED:
                n = kvshm_match_scattered(self.ptr, wanted.ptr, wanted.n, flags, number,
                                          lease.blocks, &token)
            else:
                n = kvshm_scan(self.ptr, wanted.ptr, wanted.n, flags, number, lease.blocks,
                               firsts, &token)
        if n < 0:
            fail(n, f"{_FINDING[how]} of {wanted.n} keys")
        if pending.seq:
            lease.pending = from_handle(pending)
        if how == DISTINCT:
            lease.which = first[:n]
        # Of a scattered match n is how many were found; its misses have a place, too.
        return begin_lease(lease, token, wanted.n if how == SCATTERED else <uint32_t>n)

    def match(self, keys, *, touch=True, tag="", load=False):
        """The longest prefix of `keys` that is READY, held: a Lease of n blocks, n may be 0.

        touch=False does not count as a use for eviction. `pending` of the Lease is the handle of
        the fill that the first miss is being computed in, for wait(), or None.

        load=True: the longest prefix that is in memory or on disk. Never waits for a disk: what is
        in memory can be used at once, the rest is on its way; see `loading`, wait() and loaded() of
        the Lease. A load that fails shortens it. Without a tier it is as load=False.
        """
        return self.find_loading(keys, touch, tag) if load else self.find(keys, touch, tag)

    cdef Lease find_loading(self, object keys, bint touch, object tag):
        cdef Keys wanted = as_keys(keys)
        cdef uint64_t number = as_tag(tag)
        cdef uint32_t flags = 0 if touch else KVSHM_NO_TOUCH
        cdef kvshm_load *load = NULL
        cdef kvshm_handle pending
        cdef int64_t n
        cdef Lease lease
        self.alive()
        lease = new_lease(self, tag, wanted.n)
        pending.seq = 0
        with nogil:
            n = kvshm_match_load(self.ptr, wanted.ptr, wanted.n, flags, number, &load, &pending)
        if n < 0:
            fail(n, f"match of {wanted.n} keys")
        if pending.seq:
            lease.pending = from_handle(pending)
        return begin_load(lease, load, <uint32_t>n)

    def match_scattered(self, keys, *, touch=True, tag=""):
        """Every key by itself: a Lease with an entry for each, its id NONE where there is none."""
        return self.find(keys, touch, tag, SCATTERED)

    def scan(self, keys, *, touch=False, tag=""):
        """The distinct blocks among `keys`: a Lease of the hits; `which[j]` of it is the index of
        the first key that block j answers to (uint32)."""
        return self.find(keys, touch, tag, DISTINCT)

    def presence(self, keys):
        """Per key a mask (uint8, see kvshm.Presence): 1 in memory, 2 on disk, 4 remote, 8 being
        filled. Holds and touches nothing; a guess by the time you read it."""
        cdef Keys wanted = as_keys(keys)
        cdef Bytes out
        cdef int64_t rc
        self.alive()
        mask = np.zeros(wanted.n, np.uint8)
        out = as_bytes(mask, True)
        with nogil:
            rc = kvshm_presence(self.ptr, wanted.ptr, wanted.n, <uint8_t *>out.ptr)
        if rc < 0:
            fail(rc, f"presence of {wanted.n} keys")
        return mask

    def pending(self, key):
        """Handle of the fill under way for one key, or None."""
        cdef Keys wanted = as_keys([key])
        cdef kvshm_handle h
        cdef int rc
        self.alive()
        with nogil:
            rc = kvshm_acquire(self.ptr, <const uint8_t *>wanted.ptr, KVSHM_NO_TOUCH, &h)
        if rc == -KVSHM_EPENDING:
            return from_handle(h)
        if rc == 0:
            lease_of_holds(self, "", &h, 1).release()
        elif rc != -ENOENT:
            fail(rc, "pending fill of a key")
        return None

    def upgrade(self, handle, *, touch=True, tag=""):
        """A weak handle made strong: a Lease of one block, or None if that life of the block is
        over or not finished."""
        cdef kvshm_handle h = as_handle(handle)
        cdef uint32_t flags = 0 if touch else KVSHM_NO_TOUCH
        cdef int rc
        self.alive()
        with nogil:
            rc = kvshm_upgrade(self.ptr, h, flags)
        if rc == -ENOENT or rc == -KVSHM_EPENDING:
            return None
        if rc < 0:
            fail(rc, f"upgrade of block {h.id}")
        return lease_of_holds(self, tag, &h, 1)

    def pin(self, handles, *, tag=""):
        """Hold blocks beside all other holders until the returned Lease is released: all of them,
        or None where one is gone. `handles`: a Lease, a Handle, several, or an array of them
        (Lease.handle_array). Dies with the process;
        set_priority(handle, 100) outlasts it."""
        cdef Handles wanted
        cdef uint64_t number = as_tag(tag)
        cdef kvshm_lease token = 0
        cdef Lease lease
        cdef uint32_t i
        cdef int rc
        self.alive()
        if isinstance(handles, Lease):
            handles = [h for h in handles.handles if h is not None]
        wanted = as_handles(handles)
        lease = new_lease(self, tag, wanted.n)
        with nogil:
            rc = kvshm_pin(self.ptr, wanted.ptr, wanted.n, number, &token)
        if rc == -ENOENT:
            return None
        if rc < 0:
            fail(rc, f"pin {wanted.n} blocks")
        for i in range(wanted.n):
            lease.blocks[i] = wanted.ptr[i].id
        return begin_lease(lease, token, wanted.n)

    def wait(self, handle, timeout):
        """Until the fill of `handle` is READY: True, match again. False: it is over without that,
        or `timeout` seconds have passed; compute it yourself. Cancelled: see cancel_waits(). Gives
        back what dead fillers left."""
        cdef kvshm_handle h = as_handle(handle)
        cdef double deadline = deadline_in(timeout)
        cdef uint32_t ms
        cdef int rc = 0
        while True:
            self.alive()
            ms = slice_ms(deadline)
            with nogil:
                rc = kvshm_wait(self.ptr, h, ms)
            if rc != -ETIMEDOUT:
                break
            PyErr_CheckSignals()
            if now() >= deadline:
                return False
        if rc == -ENOENT:
            return False
        if rc < 0:
            fail(rc, f"wait for block {h.id}")
        return True

    def cancel_waits(self, on=True):
        """For a process that shuts down. Its calls that wait on this arena, for space or for a
        fill, raise Cancelled at once, and so does each that would have to wait, until
        cancel_waits(False). What needs no wait goes on. From any thread."""
        cdef int want = bool(on)
        cdef int rc
        self.alive()
        with nogil:
            rc = kvshm_cancel_waits(self.ptr, want)
        if rc < 0:
            fail(rc, "cancel waits")

    # Filling

    def allocate(self, n, keys=None, after=None, *, parts=1, announce=True, timeout=0.0,
                 no_cache=False, priority=None, chained=True, evict=True, tenant=0, ttl=None,
                 priority_seconds=None):
        """n blocks to write, all or none: a Fill.

        keys: (n, 16) uint8; announced, so that others find them and can wait; else give them to
        register(). after: a Lease (its last block) or the Handle of the block that the first one
        follows, held by the caller. chained=False: keys[i-1] is not the parent of keys[i].
        parts: slices that make a block whole, 1-32. no_cache: closed at its last release.
        priority: 1-100, default 50; 100 is never evicted (OverPinBudget: see set_pin_budget).
        priority_seconds: the default returns after that time. ttl: seconds after which the blocks
        are a miss for all who do not hold them, and the first to be evicted. evict=False: free
        blocks only. tenant: a number from 0 to 255, see tenant(); what it may have, set_tenant().
        `status` of the Fill says what became of each key, `evicted` which keys had to go.

        Raises NoSpace, whose `reason` says why: nothing has changed; after `timeout` seconds of
        waiting for space it is also a TimedOut. OverQuota: the tenant has its quota, and its blocks
        are held. TooLarge: it will never fit; said at once. Cancelled: see cancel_waits(). `after`
        must be held: Misuse.
        """
        cdef kvshm_handle parent
        cdef uint32_t flags = 0
        parent.id, parent.seq, parent.zero = KVSHM_NONE, 0, 0
        if isinstance(after, Lease):
            if len(after):
                parent = (<Lease>after).handle_at(len(after) - 1)
        elif after is not None:
            parent = as_handle(after)
        flags |= 0 if announce else KVSHM_QUIET
        flags |= KVSHM_NO_CACHE if no_cache else 0
        flags |= 0 if chained else KVSHM_UNCHAINED
        flags |= 0 if evict else KVSHM_NO_EVICT
        return allocate_fill(self, n, keys, parent, parts, flags, timeout, priority, tenant, ttl,
                             priority_seconds)

    def join(self, handles):
        """Become a member of fills that another process allocated: a Fill of one Handle or of
        several. ArenaNotFound names a fill that is over."""
        return join_fill(self, handles)

    def set_no_cache(self, handle, on=True):
        """Close the block at its last release, or keep it; the last writer wins. Needs a hold."""
        cdef int rc
        self.alive()
        rc = kvshm_set_no_cache(self.ptr, as_handle(handle), bool(on))
        if rc < 0:
            fail(rc, "set no-cache")

    def set_priority(self, handle, priority, seconds=None):
        """0-100; 100 is never evicted (OverPinBudget: see set_pin_budget). With `seconds`, the
        default of 50 returns after that time. Needs a hold."""
        cdef uint32_t c_priority = as_number(priority, "priority")
        cdef uint64_t ms = as_ms(seconds, "seconds")
        cdef int rc
        self.alive()
        rc = kvshm_set_priority_for(self.ptr, as_handle(handle), c_priority, ms)
        if rc < 0:
            fail(rc, f"set priority {priority}")

    # Objects: many blocks under one key

    def create_object(self, key, nbytes, *, timeout=0.0, no_cache=False, priority=None, evict=True,
                      tenant=0, ttl=None, priority_seconds=None):
        """Room for a state larger than a block, contiguous where the free blocks allow it: an
        ObjectFill to write and commit, or None if there is one of this key (16 bytes) already.
        nbytes: a number, or text like "16MiB". The rest is as for allocate().

        Raises Busy while another process is putting it (see pending() and wait()), and NoSpace.
        """
        return create_object(self, key, nbytes, timeout, no_cache, priority, evict, tenant, ttl,
                             priority_seconds)

    def get_object(self, key):
        """The Object of a key, held for reading, all of it; or None."""
        return get_object(self, key)

    def put_object(self, key, data, **options):
        """Copy `data`, any buffer, into an object of its own, and publish it: True; False if there
        is one of this key already. Options and errors are those of create_object()."""
        return put_object(self, key, data, options)

    # Registration with a device

    def register_device(self, backend="cuda", *, mode="auto", piece="1GiB", drain=2.0, device=None,
                        timeout=60.0):
        """Register the blocks' bytes with a device, so that it copies to and from them at full
        speed: in this process, in pieces of at most `piece` bytes, no block straddling two. Asking
        again is counted; unregister_device() as often, or close(), undoes it.

        backend: "cuda" (libcuda.so.1, in this thread's context, or else in the primary context of
        `device`), or a kvshm_device_backend of kvshm.h for others: its address, or a capsule of
        that name; keep it alive. mode: "auto" works on with what could be registered, and says so
        (the result, one line of the log, `kvshm stat`); "require" registers all or raises
        Unsupported. timeout: 0 = come back at once; blocks can be used meanwhile in any case, and
        after TimedOut or a signal it goes on. Not while CUDA graphs are captured.
        drain: seconds for which fills of this process are kept from others after it was killed,
        since copies that a device has begun may still land.
        """
        return registration.register(self, backend, mode, piece, drain, device, timeout)

    def wait_device(self, timeout):
        """Until registering or undoing it is over: True; False after `timeout` seconds."""
        return registration.wait(self, timeout)

    def unregister_device(self, *, timeout=60.0):
        """Give one reference back; the last one undoes the registration. No copy may be under way.
        TimedOut: it goes on. Misuse: there is none."""
        registration.unregister(self, timeout)

    def device(self):
        """This process's registration with a device: kvshm.DeviceInfo."""
        return registration.describe(self)

    def device_ranges(self):
        """The blocks that are registered: a list of kvshm.DeviceRange."""
        return registration.ranges(self)

    # Transfers

    def guard_ring(self, ring, index=None):
        """Fence an io_uring whose transfers go into blocks that this process fills, before its
        first request: after a SIGKILL the blocks then stay out of others' hands until the last of
        its transfers has landed.

        ring: its descriptor, or what has a fileno(), such as kvshm.uring.Ring. index: a place in
        its table of registered files; None where it has none yet. Call it in the thread that
        submits. End the ring before close(). A block must stay a fill (no abort, no register) while
        a transfer into it is under way.
        """
        cdef int fd = ring.fileno() if hasattr(ring, "fileno") else ring
        cdef uint32_t place = KVSHM_NONE if index is None else index
        cdef int rc
        self.alive()
        with nogil:
            rc = kvshm_ring_guard(self.ptr, fd, place)
        if rc < 0:
            fail(rc, "guard of a ring")

    # The NVMe tier

    def open_tier(self, tier, size=0, **options):
        """The tier for an arena that was opened without one: as tier, tier_size and tier_options
        of open(), with the same errors; ArenaExists: there is one. On an error nothing changes."""
        tier_of.join(self, tier_of.parse(tier, size, options))

    @property
    def tier(self):
        """The tier as this process sees it, a kvshm.TierInfo; None if it was opened without one.
        Walks over its slots."""
        return tier_of.describe(self)

    def tier_store(self, handles):
        """Offer blocks to the tier: a Lease, a Handle, several, or an array of them. They need not
        be held; one that is evicted before its turn is dropped, and one that is on disk by then is
        not written again. They go before what goes down by itself. Returns how many were queued:
        the others found the queue full."""
        return tier_of.store(self, handles)

    def tier_cancel(self, handles):
        """Take offers of these blocks back, whoever made them, that are not begun; how many. What
        is begun is ended, and its block stays as it is until then."""
        return tier_of.cancel(self, handles)

    def tier_flush(self):
        """What was gathered is due: this engine is about to idle. Never waits."""
        tier_of.flush(self)

    def prefetch(self, keys):
        """Ask for keys to be brought from the disk into memory by whoever moves blocks, after the
        loads that somebody waits for. Nothing is held, nothing waits; how many were queued. Without
        a tier in any process nothing comes of it."""
        return tier_of.prefetch(self, keys)

    def tier_status(self, keys):
        """A kvshm.TierStatus for each key, uint8: what became of an offer."""
        return tier_of.status(self, keys)

    def tier_drain(self, timeout):
        """Flush, and until all that this process has queued is written or dropped, by whichever
        process moves: True; False after `timeout` seconds, also where nobody moves."""
        return tier_of.drain(self, timeout)

    def tier_clear(self, timeout=10.0):
        """Forget every slot that nobody reads or writes, also in the file; how many went. Busy:
        some are left. TimedOut: the file could not be written within `timeout` seconds, and after a
        reboot they would be back. Runs no signal handlers meanwhile."""
        return tier_of.clear(self, timeout)

    # Looking after the arena

    def evict(self, keys):
        """Evict these keys where nobody holds them; how many went."""
        cdef Keys wanted = as_keys(keys)
        cdef int64_t n
        self.alive()
        with nogil:
            n = kvshm_evict(self.ptr, wanted.ptr, wanted.n)
        if n < 0:
            fail(n, f"evict {wanted.n} keys")
        return n

    def clear(self):
        """Evict every block that nobody holds, also of priority 100; how many went."""
        cdef int64_t n
        self.alive()
        with nogil:
            n = kvshm_clear(self.ptr)
        if n < 0:
            fail(n, "clear")
        return n

    def reset_inactive(self):
        """clear(), and then all blocks must be free: else Busy, with `expected` and `actual`."""
        cdef uint64_t expected = 0, actual = 0
        cdef int rc
        self.alive()
        with nogil:
            rc = kvshm_reset_inactive(self.ptr, &expected, &actual)
        if rc == -EBUSY:
            error = Busy(f"reset: expected {expected} free blocks, found {actual}")
            error.code, error.expected, error.actual = EBUSY, expected, actual
            raise error
        if rc < 0:
            fail(rc, "reset")

    @property
    def epoch(self):
        """Of the arena's namespace, 0 at first; one read of shared memory. Keys of requests belong
        under identity.with_epoch(arena.epoch), read anew for each."""
        cdef uint32_t out = 0
        cdef int rc
        self.alive()
        rc = kvshm_space_epoch(self.ptr, &out)
        if rc < 0:
            fail(rc, "epoch")
        return out

    def bump_epoch(self):
        """Begin a new epoch, for all attached processes at once; returns it. What is stored, or
        still being stored, under older ones is found by nobody who keys under the new one."""
        cdef int64_t n
        self.alive()
        with nogil:
            n = kvshm_bump_epoch(self.ptr)
        if n < 0:
            fail(n, "bump the epoch")
        return n

    def reap(self):
        """Give back what dead processes held. Safe at any time."""
        cdef kvshm_reap_report r
        cdef int rc
        self.alive()
        r.size = sizeof(r)
        with nogil:
            rc = kvshm_reap(self.ptr, &r)
        if rc < 0:
            fail(rc, "reap")
        return ReapReport(r.slots_dead, r.slots_cleared, r.slots_draining, r.holds, r.fills,
                          r.evictions)

    def tick(self):
        """What the helper thread does; to be called about twice a second with helper=False."""
        cdef int rc
        self.alive()
        with nogil:
            rc = kvshm_tick(self.ptr)
        if rc < 0:
            fail(rc, "tick")

    # Tenants and limits

    def tenant(self, name):
        """The number of a tenant's name (1 to 255 bytes as UTF-8), the same for all processes;
        given out at the first asking. Use names or numbers of your own, not both. NoSpace: all
        are given out."""
        cdef bytes text = name.encode() if isinstance(name, str) else b""
        cdef int rc
        self.alive()
        if not text or b"\0" in text:
            raise InvalidArgument(f"tenant: expected a name, got {name!r}")
        rc = kvshm_tenant_number(self.ptr, text)
        if rc < 0:
            fail(rc, f"tenant {name!r}")
        return rc

    def tenants(self):
        """Who has a name, a limit or a block: a list of kvshm.TenantInfo. Walks over all blocks."""
        return introspect.tenants(self)

    def set_tenant(self, tenant, *, quota=None, weight=None):
        """Both limits of a tenant (a name or a number), for all processes, from now on.

        quota: blocks that it may have; a new one replaces one of its own then, and OverQuota is
        raised only where all of those are held. weight: where any tenant has one, the blocks of a
        full arena are shared by weight, and whoever is above its share loses some first. None: no
        such limit.
        """
        cdef uint32_t c_tenant, c_weight
        cdef uint64_t c_quota
        cdef int rc
        self.alive()
        if isinstance(tenant, str):
            tenant = self.tenant(tenant)
        c_tenant = as_number(tenant, "tenant")
        c_quota = as_number(quota or 0, "quota")
        c_weight = as_number(weight or 0, "weight")
        with nogil:  # may count all blocks
            rc = kvshm_set_tenant(self.ptr, c_tenant, c_quota, c_weight)
        if rc < 0:
            fail(rc, f"limits of tenant {tenant}")

    def set_pin_budget(self, blocks):
        """How many blocks may have priority 100 at once; None = any number. What has it keeps it;
        one more is refused, OverPinBudget."""
        cdef uint64_t c_blocks = KVSHM_NO_BUDGET if blocks is None else as_number(blocks, "blocks")
        cdef int rc
        self.alive()
        rc = kvshm_set_pin_budget(self.ptr, c_blocks)
        if rc < 0:
            fail(rc, "budget of pins")

    def pins(self):
        """(blocks of priority 100, how many may have it or None). A walk over all blocks."""
        return introspect.pins(self)

    def stats(self, *, own=False):
        """Gauges and totals by name (kvshm.Stats), of all processes or of this one alone."""
        return introspect.stats(self, own)

    def info(self):
        """What the arena is: kvshm.ArenaInfo."""
        return introspect.info(self)

    def block(self, block_id):
        """A snapshot of one block: kvshm.BlockInfo."""
        return introspect.block(self, block_id)

    def processes(self):
        """The process slots in use, dead ones included: a list of kvshm.ProcessInfo."""
        return introspect.processes(self)

    def is_valid(self):
        """The broken invariants, as a list of kvshm.Broken: empty is fine. On a busy arena some
        may be transient: look three times."""
        return introspect.broken(self)

    def __repr__(self):
        if self.gone:
            return f"<kvshm.Arena {self.name!r}, closed>"
        return (f"<kvshm.Arena {self.name!r}: {self.blocks} blocks of {self.block_bytes} bytes, "
                f"slot {self.slot}>")
