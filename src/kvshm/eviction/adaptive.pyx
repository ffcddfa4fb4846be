# cython: language_level=3, freethreading_compatible=True, auto_pickle=False, boundscheck=False
# SPDX-License-Identifier: Apache-2.0
"""The controller of `adaptive`: which of WEIGHTS would hit most, by shadow caches in the arena.

Processes record their uses of one key in eight (of all up to 4096 blocks, of one in 32 above
65536). One process at a time takes these records, in its helper thread or in tick(), and plays
them through one small cache of keys for each weight, as large in proportion as the arena. Every
cache counts its hits, an older one for less (a window of 40000 uses); a weight that leads by more
than 1 % comes into force for all processes. The caches are sets of words in the arena, so the
next leader goes on where one was killed, and a dead controller leaves the last weight in force.

Sampling by hash: Waldspurger et al., FAST'15 (SHARDS); choosing a policy by simulating small caches
of it: Waldspurger et al., ATC'17. Keys of a chain are played one by one: what a gap costs is not
seen.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from kvshm.attach cimport Attachment
from kvshm.ckvshm cimport (kvshm_policy, kvshm_set_controller, kvshm_shadow, kvshm_step_policy)
from kvshm.convert cimport fail
from kvshm.eviction.policies cimport fill_in

cdef enum:
    MANY = 8  # weights at most: kvshm_shadow has room for so many

cdef struct Weight:
    kvshm_policy table
    uint32_t young

cdef Weight weights[MANY]
cdef uint32_t nweights = 0

cdef double WINDOW = 40000.0  # uses, of which a share is recorded
cdef double LEAD = 1.01
cdef double START = 20.0  # hits that a lead must be at least


# An entry: [ tag: 28 | uses: 4 | clock: 32 ], 0 = empty. A record: [ hash: 48 | 0: 12 | uses: 4 ].
cdef inline uint64_t _entry(uint64_t tag, uint64_t uses, uint32_t clock) noexcept nogil:
    return tag << 36 | uses << 32 | clock


cdef uint32_t _victim(const uint64_t *group, uint32_t ways, const Weight *weight, uint32_t young,
                      uint32_t clock) noexcept nogil:
    """The way that this weight gives up: the scorer of the arena, over keys."""
    cdef uint32_t best = 0, way, uses, age, reluctance, best_reluctance = 0xffffffff, best_age = 0
    cdef uint64_t entry
    for way in range(ways):
        entry = group[way]
        if entry == 0:
            return way
        uses = <uint32_t>(entry >> 32) & 15
        age = clock - <uint32_t>entry
        reluctance = weight.table.rank[uses]
        if young and reluctance == 0:
            if age > young:
                age = ~age
            else:
                reluctance = 1
        else:
            age >>= weight.table.shift[uses]
        if reluctance < best_reluctance or (reluctance == best_reluctance and age > best_age):
            best = way
            best_reluctance = reluctance
            best_age = age
    return best


cdef bint _play(uint64_t *group, uint32_t ways, const Weight *weight, uint32_t young, uint64_t tag,
                uint32_t uses, uint32_t clock) noexcept nogil:
    """True: the cache has the key. It is the youngest afterwards."""
    cdef uint32_t way
    for way in range(ways):
        if group[way] >> 36 == tag:
            group[way] = _entry(tag, uses, clock)
            return True
    group[_victim(group, ways, weight, young, clock)] = _entry(tag, uses, clock)
    return False


cdef int _step(kvshm_shadow *s, void *user) noexcept nogil:
    cdef uint32_t i, c, caches = s.caches if s.caches < nweights else nweights
    cdef uint32_t best = 0, blocks = <uint32_t>(s.sets * s.ways), young
    cdef uint64_t record, tag, row
    cdef uint64_t *group
    cdef uint32_t clock = s.clock
    cdef double keep = 1.0 - (<uint64_t>1 << s.bits) / WINDOW  # of the hits, a record
    for i in range(s.n):
        record = s.records[i]
        clock += 1
        tag = record >> 16 & 0xfffffff
        if tag == 0:
            tag = 1
        row = (record >> 40) * s.sets >> 24
        for c in range(caches):
            group = s.entries + (c * s.sets + row) * s.ways
            young = weights[c].young * blocks // 1024 + 1 if weights[c].young else 0
            s.hits[c] *= keep
            if _play(group, s.ways, &weights[c], young, tag, <uint32_t>record & 15, clock):
                s.hits[c] += 1
    for c in range(caches):
        if not 0 <= s.hits[c] <= 2 * WINDOW:  # damage, or no number
            s.hits[c] = 0
        if s.hits[c] > s.hits[best]:
            best = c
    if s.weight >= caches:
        s.weight = 0
        s.stale = 1
    if best != s.weight and s.hits[best] > START and s.hits[best] > LEAD * s.hits[s.weight]:
        s.weight = best
        s.stale = 1
    if s.stale:
        s.policy = weights[s.weight].table
        return 1
    return 0


cdef _set_up():
    global nweights
    from kvshm.eviction.policies import WEIGHTS, weighted

    for i in range(len(WEIGHTS)):
        table = weighted(i)
        memset(&weights[i], 0, sizeof(Weight))
        fill_in(&weights[i].table, table)
        weights[i].young = table.young
    nweights = len(WEIGHTS)
    kvshm_set_controller(_step, NULL)


_set_up()


def step(Attachment arena not None):
    """Take the records that lie there, now: how many. 0 where another process leads, or where the
    arena's policy has no controller. The helper thread does so by itself; for who has none, and for
    replays, which are faster than it wakes."""
    arena.alive()
    cdef int64_t n
    with nogil:
        n = kvshm_step_policy(arena.ptr)
    if n < 0:
        fail(n, "step the policy's controller")
    return n
