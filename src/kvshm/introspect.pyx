# cython: language_level=3, freethreading_compatible=True, auto_pickle=False
# SPDX-License-Identifier: Apache-2.0
"""Looking into an arena that this process is attached to: statistics, blocks, processes."""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (KVSHM_FOR_GOOD, KVSHM_NO_BUDGET, KVSHM_SLOTS, kvshm_block_info,
                           kvshm_get_block, kvshm_get_info, kvshm_get_own_stats,
                           kvshm_get_pin_budget, kvshm_get_process, kvshm_get_stats,
                           kvshm_get_tenants, kvshm_info, kvshm_is_valid, kvshm_process,
                           kvshm_stats, kvshm_tenant)
from kvshm.convert cimport as_number, fail

from kvshm.records import ArenaInfo, BlockInfo, Broken, ProcessInfo, Stats, TenantInfo


cdef extern from *:
    """
    #define KVSHM_NAME_AND_TEXT(name, text) {#name, text},
    static const struct { const char *name, *text; } kvshm_stat_list[] = {
      KVSHM_GAUGE_FIELDS(KVSHM_NAME_AND_TEXT) KVSHM_COUNTER_FIELDS(KVSHM_NAME_AND_TEXT) };
    enum { KVSHM_STATS_N = sizeof(kvshm_stat_list) / sizeof(kvshm_stat_list[0]) };
    static_assert(sizeof(kvshm_stats) == sizeof(size_t) + 8 * KVSHM_STATS_N, "all are u64");
    """
    ctypedef struct _stat_text:
        const char *name
        const char *text
    _stat_text kvshm_stat_list[1]
    int KVSHM_STATS_N

STAT_TEXTS = {kvshm_stat_list[i].name.decode(): kvshm_stat_list[i].text.decode()
              for i in range(KVSHM_STATS_N)}
"""What each statistic counts, in the header's words and order."""


def stats(Attachment arena, bint own):
    cdef kvshm_stats s
    cdef uint64_t *values = <uint64_t *>(<char *>&s + sizeof(size_t))
    cdef int rc
    arena.alive()
    s.size = sizeof(s)
    with nogil:  # the gauges take a walk over all blocks
        rc = kvshm_get_own_stats(arena.ptr, &s) if own else kvshm_get_stats(arena.ptr, &s)
    if rc < 0:
        fail(rc, "statistics")
    return Stats({name: values[i] for i, name in enumerate(STAT_TEXTS)})


def info(Attachment arena):
    cdef kvshm_info i
    cdef int rc
    arena.alive()
    i.size = sizeof(i)
    rc = kvshm_get_info(arena.ptr, &i)
    if rc < 0:
        fail(rc, "arena information")
    return ArenaInfo(
        name=i.name.decode(), path=i.path.decode("utf-8", "surrogateescape"), bytes=i.bytes,
        block_bytes=i.block_bytes, blocks=i.blocks, data_offset=i.data_offset,
        metadata_bytes=i.metadata_bytes, private_bytes=i.private_bytes, page_bytes=i.page_bytes,
        uuid=(<char *>i.uuid)[:16], fingerprint=(<char *>i.fingerprint)[:16],
        identity=i.identity.decode(), slot=i.slot, slots_used=i.slots_used,
        pinned=bool(i.pinned), created=bool(i.created), raw=bool(i.raw), numa=i.numa,
        charged_group=i.charged_group.decode("utf-8", "replace"), foreign_at=i.foreign_at,
        foreign_pid=i.foreign_pid, foreign_identity=i.foreign_identity.decode("utf-8", "replace"))


def block(Attachment arena, block_id):
    cdef kvshm_block_info b
    cdef uint32_t c_id = as_number(block_id, "block")
    cdef int rc
    arena.alive()
    b.size = sizeof(b)
    rc = kvshm_get_block(arena.ptr, c_id, &b)
    if rc < 0:
        fail(rc, f"block {block_id}")
    return BlockInfo(
        id=c_id, key=(<char *>b.key)[:16], seq=b.seq, holders=b.holders, state=b.state,
        flags=b.flags, parent=b.parent, child=b.child, primary=b.primary, depth=b.depth,
        stamp=b.stamp, frequency=b.frequency, parts=b.parts, begun=b.begun, arrived=b.arrived,
        priority=b.priority, tenant=b.tenant, own_holds=b.own_holds, ttl=_left(b.ttl_ms),
        priority_seconds=_left(b.priority_ms))


cdef object _left(uint64_t ms):
    return None if ms == KVSHM_FOR_GOOD else ms / 1000


def tenants(Attachment arena):
    cdef kvshm_tenant rows[256]
    cdef int64_t i, n
    arena.alive()
    rows[0].size = sizeof(kvshm_tenant)
    with nogil:  # a walk over all blocks
        n = kvshm_get_tenants(arena.ptr, rows, 256)
    if n < 0:
        fail(n, "tenants")
    return [TenantInfo(rows[i].tenant, rows[i].name.decode("utf-8", "replace"), rows[i].used,
                       rows[i].quota or None, rows[i].weight or None, rows[i].share or None)
            for i in range(n)]


def pins(Attachment arena):
    cdef uint64_t budget = 0, pinned = 0
    cdef int rc
    arena.alive()
    with nogil:  # a walk over all blocks
        rc = kvshm_get_pin_budget(arena.ptr, &budget, &pinned)
    if rc < 0:
        fail(rc, "pins")
    return pinned, None if budget == KVSHM_NO_BUDGET else budget


def processes(Attachment arena):
    cdef kvshm_process p
    cdef uint32_t slot
    cdef int rc
    arena.alive()
    found = []
    for slot in range(<uint32_t>KVSHM_SLOTS):
        p.size = sizeof(p)
        with nogil:  # asks the kernel whether it lives
            rc = kvshm_get_process(arena.ptr, slot, &p)
        if rc < 0:
            fail(rc, f"process slot {slot}")
        if p.used:
            found.append(ProcessInfo(
                slot=slot, pid=p.pid, uid=p.uid, label=p.label.decode("utf-8", "replace"),
                alive=bool(p.alive), device_busy=bool(p.device_busy), draining=bool(p.draining),
                self=bool(p.self), start_time=p.start_time, attached_at=p.attached_at,
                pid_ns=p.pid_ns, device_bytes=p.device_bytes, device_state=p.device_state,
                device_memory=bool(p.device_memory),
                epoch=p.epoch if p.with_identity else None))
    return found


cdef void _note(int invariant, uint32_t block_id, const char *what, void *user) noexcept with gil:
    (<list>user).append(Broken(invariant, block_id, what.decode("utf-8", "replace")))


def broken(Attachment arena):
    cdef list found = []
    cdef int64_t n
    arena.alive()
    with nogil:
        n = kvshm_is_valid(arena.ptr, _note, <void *>found)
    if n < 0:
        fail(n, "check of the arena")
    return found
