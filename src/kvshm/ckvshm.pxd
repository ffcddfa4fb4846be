# cython: language_level=3
# SPDX-License-Identifier: Apache-2.0
"""kvshm.h for cimport, one line a declaration. The header says what each means and returns."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef extern from "kvshm.h" nogil:
    # Macros and enumerations
    const char *KVSHM_VERSION
    int KVSHM_VERSION_MAJOR, KVSHM_VERSION_MINOR, KVSHM_VERSION_PATCH
    int KVSHM_LAYOUT_VERSION
    const uint32_t KVSHM_NONE
    int KVSHM_KEY_BYTES, KVSHM_SLOTS, KVSHM_MAX_PARTS, KVSHM_NAME_MAX
    int KVSHM_ECLOSED, KVSHM_EFORKED, KVSHM_ELAYOUT, KVSHM_EIDENTITY, KVSHM_EGEOMETRY
    int KVSHM_ENOTREADY, KVSHM_ENOSLOT, KVSHM_ENOSPACE, KVSHM_ENOTMINE, KVSHM_ESTATE
    int KVSHM_EPART, KVSHM_EPENDING, KVSHM_EUNSUPPORTED, KVSHM_EINUSE, KVSHM_ECANCELED
    int KVSHM_EQUOTA, KVSHM_EPINNED, KVSHM_ETOOLARGE
    int KVSHM_EXTRA_SALT, KVSHM_EXTRA_ADAPTER, KVSHM_EXTRA_MEDIA, KVSHM_EXTRA_GROUP
    int KVSHM_EXTRA_OTHER
    int KVSHM_AUTO, KVSHM_REQUIRE, KVSHM_OFF, KVSHM_UNKNOWN_WEIGHTS
    int KVSHM_NUMA_AUTO, KVSHM_NUMA_INTERLEAVE
    int KVSHM_NO_HELPER
    int KVSHM_QUIET, KVSHM_NO_CACHE, KVSHM_UNCHAINED, KVSHM_NO_EVICT
    int KVSHM_ST_NONE, KVSHM_ST_ANNOUNCED, KVSHM_ST_EXISTS, KVSHM_ST_PENDING, KVSHM_ST_FULL
    int KVSHM_ST_PRIMARY, KVSHM_ST_DUPLICATE, KVSHM_ST_PRESENT, KVSHM_ST_PRIVATE
    int KVSHM_ALLOW, KVSHM_REJECT
    int KVSHM_NO_TOUCH
    int KVSHM_IN_G2, KVSHM_IN_G3, KVSHM_IN_G4, KVSHM_IS_FILLING
    int KVSHM_FREE, KVSHM_FILLING, KVSHM_READY, KVSHM_EVICTING, KVSHM_READY_LAST
    int KVSHM_F_DUPLICATE, KVSHM_F_ANNOUNCED, KVSHM_F_FAILED, KVSHM_F_PRIVATE, KVSHM_F_MORTAL
    int KVSHM_DEVICE_OK, KVSHM_DEVICE_ALREADY, KVSHM_DEVICE_GONE
    int KVSHM_DEVICE_NONE, KVSHM_DEVICE_REGISTERING, KVSHM_DEVICE_REGISTERED, KVSHM_DEVICE_PARTLY
    int KVSHM_DEVICE_REFUSED, KVSHM_DEVICE_UNREGISTERING
    int KVSHM_REFUSED_NOT, KVSHM_REFUSED_HELD, KVSHM_REFUSED_PINNED, KVSHM_REFUSED_QUOTA
    int KVSHM_REFUSED_SIZE, KVSHM_REFUSED_NO_FREE
    int KVSHM_TENANTS, KVSHM_TENANT_NAME_MAX
    const uint64_t KVSHM_NO_BUDGET, KVSHM_FOR_GOOD
    int KVSHM_LOG_DEBUG, KVSHM_LOG_INFO, KVSHM_LOG_WARN, KVSHM_LOG_ERROR
    int KVSHM_TIER_FILES, KVSHM_TIER_AUTO, KVSHM_TIER_URING, KVSHM_TIER_THREADS
    int KVSHM_TIER_WRITE_THROUGH, KVSHM_TIER_WRITE_OFF, KVSHM_TIER_WRITE_LAZY
    int KVSHM_TIER_WRITE_WATERMARK, KVSHM_TIER_WRITE_RELEASE, KVSHM_TIER_WRITE_IDLE
    int KVSHM_TS_NONE, KVSHM_TS_WRITING, KVSHM_TS_STORED
    int KVSHM_TIER_NONE, KVSHM_TIER_REBUILDING, KVSHM_TIER_OK, KVSHM_TIER_NO_SPACE
    int KVSHM_TIER_STALLED, KVSHM_TIER_FAILED, KVSHM_TIER_SLOW
    int KVSHM_LD_NONE, KVSHM_LD_MEMORY, KVSHM_LD_LOADING, KVSHM_LD_AWAITED, KVSHM_LD_LOADED
    int KVSHM_LD_FAILED, KVSHM_NO_LOAD

    ctypedef struct kvshm_arena:
        pass
    ctypedef uint64_t kvshm_lease
    ctypedef uint8_t kvshm_key[16]

    ctypedef struct kvshm_handle:
        uint64_t seq
        uint32_t id
        uint32_t zero

    # General
    const char *kvshm_version()
    const char *kvshm_strerror(int code)
    const char *kvshm_last_error()
    int kvshm_last_refusal()
    const char *kvshm_refusal_name(int reason)
    ctypedef void (*kvshm_log_fn)(int level, const char *message, void *user) noexcept
    void kvshm_set_log(kvshm_log_fn fn, void *user)

    # Identity and keys
    ctypedef struct kvshm_identity:
        size_t size
        const char *model
        const char *weights
        const char *dtype
        const char *layout
        const char *parallel
        const char *space
        uint32_t block_tokens
        uint32_t epoch
        uint32_t flags
        uint32_t zero

    ctypedef struct kvshm_extra:
        uint32_t type
        uint32_t length
        const void *data

    int kvshm_identity_derive(const kvshm_identity *id, uint8_t *key, uint8_t *fingerprint)
    int64_t kvshm_identity_text(const kvshm_identity *id, char *buf, size_t cap)
    int kvshm_extra_digest(const uint8_t *key, const kvshm_extra *items, size_t n, uint8_t *out)
    int64_t kvshm_keys_tokens(const uint8_t *key, const uint8_t *extra, const uint8_t *parent,
                              const uint32_t *tokens, size_t ntokens, uint32_t block_tokens,
                              kvshm_key *out, size_t cap)
    int64_t kvshm_keys_hashes(const uint8_t *key, const uint8_t *extra, const void *hashes,
                              size_t hash_len, size_t n, kvshm_key *out)

    # Arenas
    ctypedef struct kvshm_options:
        size_t size
        uint64_t bytes
        uint64_t block_bytes
        uint64_t blocks
        const kvshm_identity *identity
        const char *dir
        const char *label
        const char *group
        uint32_t timeout_ms
        uint32_t flags
        uint32_t pin
        uint32_t huge
        int32_t numa
        uint32_t reap_ms
        uint64_t quota

    int kvshm_open(kvshm_arena **out, const char *name, const kvshm_options *opts)
    int kvshm_create(kvshm_arena **out, const char *name, const kvshm_options *opts)
    int kvshm_attach(kvshm_arena **out, const char *name, const kvshm_options *opts)
    int kvshm_close(kvshm_arena *a, uint32_t timeout_ms)
    int kvshm_remove(const char *name, const char *dir, int force)
    int64_t kvshm_auto_name(const kvshm_identity *id, char *buf, size_t cap)

    ctypedef struct kvshm_info:
        size_t size
        uint64_t bytes, block_bytes, blocks, data_offset, metadata_bytes, private_bytes
        uint8_t uuid[16]
        uint8_t fingerprint[16]
        uint64_t page_bytes
        uint32_t slot, slots_used, pinned, created, raw
        int32_t numa
        char name[64]
        char path[256]
        char identity[1024]
        char charged_group[256]
        uint64_t foreign_at, foreign_pid
        char foreign_identity[1024]

    int kvshm_get_info(kvshm_arena *a, kvshm_info *out)

    # Filling
    ctypedef struct kvshm_fill_options:
        size_t size
        uint32_t flags, parts, timeout_ms, priority, tenant, zero
        kvshm_handle parent
        uint64_t ttl_ms, priority_ms

    ctypedef struct kvshm_evicted:
        size_t size
        kvshm_key *keys
        size_t cap
        size_t count

    int kvshm_allocate(kvshm_arena *a, uint32_t n, const kvshm_key *keys,
                       const kvshm_fill_options *opts, kvshm_handle *out, uint8_t *status,
                       kvshm_evicted *evicted)
    int kvshm_fill_join(kvshm_arena *a, kvshm_handle h)
    int kvshm_fill_begin(kvshm_arena *a, kvshm_handle h, uint32_t part)
    int kvshm_fill_arrive(kvshm_arena *a, kvshm_handle h, uint32_t part)
    int kvshm_publish(kvshm_arena *a, kvshm_handle h)
    int64_t kvshm_register(kvshm_arena *a, const kvshm_handle *h, uint32_t n,
                           const kvshm_key *keys, int policy, kvshm_handle *out, uint8_t *results)
    int kvshm_abort(kvshm_arena *a, const kvshm_handle *h, uint32_t n)

    # Bytes
    void *kvshm_block_data(kvshm_arena *a, uint32_t id)
    int kvshm_copy_in(kvshm_arena *a, kvshm_handle h, uint64_t offset, const void *src, uint64_t n)
    int kvshm_copy_out(kvshm_arena *a, kvshm_handle h, uint64_t offset, void *dst, uint64_t n)
    void kvshm_stream_copy(void *dst, const void *src, size_t n)
    const char *kvshm_stream_copy_variant()

    # Finding and holding
    int kvshm_acquire(kvshm_arena *a, const uint8_t *key, uint32_t flags, kvshm_handle *out)
    int kvshm_upgrade(kvshm_arena *a, kvshm_handle h, uint32_t flags)
    int kvshm_drop(kvshm_arena *a, const kvshm_handle *h, uint32_t n)
    int kvshm_handle_of(kvshm_arena *a, uint32_t id, kvshm_handle *out)
    int64_t kvshm_match(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys, uint32_t *ids,
                        kvshm_lease *lease)
    int64_t kvshm_match_with(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys,
                             uint32_t flags, uint64_t tag, uint32_t *ids, kvshm_lease *lease,
                             kvshm_handle *pending)
    int64_t kvshm_match_scattered(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys,
                                  uint32_t flags, uint64_t tag, uint32_t *ids, kvshm_lease *lease)
    int64_t kvshm_scan(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys, uint32_t flags,
                       uint64_t tag, uint32_t *ids, uint32_t *which, kvshm_lease *lease)
    int64_t kvshm_presence(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys, uint8_t *mask)
    int kvshm_release(kvshm_arena *a, kvshm_lease lease)
    int kvshm_lease_trim(kvshm_arena *a, kvshm_lease lease, uint32_t keep)
    int64_t kvshm_lease_ids(kvshm_arena *a, kvshm_lease lease, uint32_t *ids, uint32_t cap)
    int kvshm_lease_make(kvshm_arena *a, const kvshm_handle *h, uint32_t n, uint64_t tag,
                         kvshm_lease *lease)
    int kvshm_pin(kvshm_arena *a, const kvshm_handle *h, uint32_t n, uint64_t tag,
                  kvshm_lease *lease)
    int kvshm_set_no_cache(kvshm_arena *a, kvshm_handle h, int on)
    int kvshm_set_priority(kvshm_arena *a, kvshm_handle h, uint32_t priority)
    int kvshm_set_priority_for(kvshm_arena *a, kvshm_handle h, uint32_t priority, uint64_t ms)
    int kvshm_wait(kvshm_arena *a, kvshm_handle h, uint32_t timeout_ms)
    int kvshm_cancel_waits(kvshm_arena *a, int on)

    # Transfers by an io_uring of your own
    int kvshm_ring_guard(kvshm_arena *a, int ring_fd, uint32_t index)
    int kvshm_guard_fd(kvshm_arena *a)

    # Objects
    ctypedef struct kvshm_object:
        pass
    ctypedef struct kvshm_piece:
        void *data
        size_t bytes

    int kvshm_object_create(kvshm_arena *a, const uint8_t *key, uint64_t bytes,
                            const kvshm_fill_options *opts, kvshm_object **out)
    int kvshm_object_commit(kvshm_object *o)
    int kvshm_object_get(kvshm_arena *a, const uint8_t *key, kvshm_object **out)
    uint64_t kvshm_object_bytes(const kvshm_object *o)
    void *kvshm_object_data(const kvshm_object *o)
    int64_t kvshm_object_pieces(const kvshm_object *o, kvshm_piece *pieces, size_t cap)
    int kvshm_object_write(kvshm_object *o, uint64_t offset, const void *src, uint64_t n)
    int kvshm_object_read(const kvshm_object *o, uint64_t offset, void *dst, uint64_t n)
    void kvshm_object_close(kvshm_object *o)

    # Registration with a device
    ctypedef struct kvshm_device_backend:
        size_t size
        const char *name
        void *user
        uint64_t max_bytes
        int (*register_memory)(void *user, void *data, size_t bytes) noexcept
        int (*unregister_memory)(void *user, void *data) noexcept
        int (*covers)(void *user, const void *data, size_t bytes) noexcept
        void (*clear_error)(void *user) noexcept
        const char *(*error_text)(void *user, int code) noexcept
        void (*finish)(void *user) noexcept

    ctypedef struct kvshm_device_options:
        size_t size
        const kvshm_device_backend *backend
        uint64_t piece_bytes
        uint32_t mode, timeout_ms, drain_ms
        int32_t device

    ctypedef struct kvshm_device:
        size_t size
        uint32_t state, references
        uint64_t bytes, bytes_registered, bytes_foreign
        uint32_t pieces, piece_blocks, stuck
        int32_t code
        char backend[16]
        char reason[192]

    ctypedef struct kvshm_device_range:
        uint32_t first, blocks, foreign, zero

    int kvshm_register_device(kvshm_arena *a, const kvshm_device_options *opts)
    int kvshm_wait_device(kvshm_arena *a, uint32_t timeout_ms)
    int kvshm_unregister_device(kvshm_arena *a, uint32_t timeout_ms)
    int kvshm_get_device(kvshm_arena *a, kvshm_device *out)
    int64_t kvshm_device_ranges(kvshm_arena *a, kvshm_device_range *out, size_t cap)

    # Paged KV tensors
    int KVSHM_MEMORY_HOST, KVSHM_MEMORY_CUDA, KVSHM_PAGES_WAITS

    ctypedef struct kvshm_run:
        uint64_t address, stride, bytes, offset

    ctypedef struct kvshm_pages:
        size_t size
        const kvshm_run *runs
        uint32_t nruns, rows
        uint64_t slice_bytes
        uint32_t memory, zero
        void *stream

    int64_t kvshm_pages_prepare(kvshm_run *runs, uint32_t n, uint32_t rows, uint64_t slice_bytes,
                                uint32_t *bad)
    int kvshm_pages_check(const kvshm_pages *p, int writing, uint32_t *bad)
    int64_t kvshm_pages_store(kvshm_arena *a, const kvshm_pages *p, const kvshm_handle *h,
                              const uint32_t *rows, uint32_t n, uint32_t part, int32_t *codes)
    int64_t kvshm_pages_load(kvshm_arena *a, const kvshm_pages *p, const kvshm_handle *h,
                             const uint32_t *rows, uint32_t n, uint32_t part, int32_t *codes)
    int64_t kvshm_pages_finish(kvshm_arena *a, const kvshm_handle *h, uint32_t n, uint32_t part,
                               int32_t *codes)

    # The NVMe tier
    ctypedef struct kvshm_tier_options:
        size_t size
        const char *const *paths
        uint32_t npaths, engine, direct, sync, write, admit, queue, deadline_ms
        uint64_t bytes, min_speed, gather
        uint32_t age_ms, low, mover, stores, min_prefix, min_priority

    ctypedef struct kvshm_tier:
        size_t size
        uint32_t state, engine, direct, files
        uint64_t slots, slot_bytes, slots_ready, rebuild_done, rebuild_total
        uint32_t queued, in_flight, align, registered, mover, mover_pid, fetching
        uint64_t read_speed
        char image[64]
        char why[256]
        char path[512]

    int kvshm_tier_open(kvshm_arena *a, const kvshm_tier_options *opts)
    int kvshm_get_tier(kvshm_arena *a, kvshm_tier *out)
    const char *kvshm_tier_state_name(uint32_t state)
    const char *kvshm_tier_engine_name(uint32_t engine)
    int64_t kvshm_tier_store(kvshm_arena *a, const kvshm_handle *h, uint32_t n)
    int64_t kvshm_tier_cancel(kvshm_arena *a, const kvshm_handle *h, uint32_t n)
    int kvshm_tier_flush(kvshm_arena *a)
    int kvshm_tier_drain(kvshm_arena *a, uint32_t timeout_ms)
    int64_t kvshm_prefetch(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys)
    int kvshm_tier_status(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys, uint8_t *status)
    int64_t kvshm_tier_clear(kvshm_arena *a, uint32_t timeout_ms)

    ctypedef struct kvshm_load:
        pass
    ctypedef void (*kvshm_load_fn)(void *user) noexcept

    int64_t kvshm_match_load(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys,
                             uint32_t flags, uint64_t tag, kvshm_load **load,
                             kvshm_handle *pending)
    int kvshm_load_wait(kvshm_load *load, uint32_t timeout_ms)
    int kvshm_load_notify(kvshm_load *load, kvshm_load_fn fn, void *user)
    int64_t kvshm_load_status(kvshm_load *load, uint8_t *status, uint32_t *ids)
    int64_t kvshm_load_lease(kvshm_load *load, kvshm_lease *lease)
    void kvshm_load_free(kvshm_load *load)

    ctypedef struct kvshm_gds_piece:
        uint64_t address, bytes, offset
    ctypedef struct kvshm_gds_buffer:
        uint64_t address, bytes
    enum:
        KVSHM_GDS_TRUST
        KVSHM_GDS_NONE
        KVSHM_GDS_HOST
        KVSHM_GDS_DIRECT
    ctypedef struct kvshm_gds_options:
        size_t size
        const kvshm_gds_buffer *buffers
        uint32_t nbuffers, load, store, flags, timeout_ms
        int32_t device
    ctypedef struct kvshm_gds:
        size_t size
        uint32_t load, store
        uint64_t loads[3]
        uint64_t stores[3]
        uint64_t load_bytes[3]
        uint64_t store_bytes[3]
        uint32_t switches, buffers, may_stage, stage_pinned
        char why[256]

    int kvshm_gds_open(kvshm_arena *a, const kvshm_gds_options *opts)
    int kvshm_get_gds(kvshm_arena *a, kvshm_gds *out)
    int kvshm_gds_load(kvshm_arena *a, const kvshm_key *key, const kvshm_gds_piece *p, uint32_t n,
                       uint32_t timeout_ms)

    # Looking after an arena
    int64_t kvshm_evict(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys)
    int64_t kvshm_clear(kvshm_arena *a)
    int kvshm_reset_inactive(kvshm_arena *a, uint64_t *expected, uint64_t *actual)

    int kvshm_space_epoch(kvshm_arena *a, uint32_t *out)
    int64_t kvshm_bump_epoch(kvshm_arena *a)

    ctypedef struct kvshm_reap_report:
        size_t size
        uint32_t slots_dead, slots_cleared, slots_draining, zero
        uint64_t holds, fills, evictions

    int kvshm_reap(kvshm_arena *a, kvshm_reap_report *report)
    int kvshm_tick(kvshm_arena *a)

    ctypedef struct kvshm_stats:  # size, then gauges and counters: see introspect.pyx
        size_t size
    int kvshm_get_stats(kvshm_arena *a, kvshm_stats *out)
    int kvshm_get_own_stats(kvshm_arena *a, kvshm_stats *out)

    ctypedef struct kvshm_block_info:
        size_t size
        kvshm_key key
        uint64_t seq, holders
        uint32_t state, flags, parent, child, primary, depth, stamp, frequency
        uint32_t parts, begun, arrived, priority, tenant, own_holds
        uint64_t ttl_ms, priority_ms

    int kvshm_get_block(kvshm_arena *a, uint32_t id, kvshm_block_info *out)

    ctypedef struct kvshm_process:
        size_t size
        uint32_t slot, used, alive, device_busy, draining, self
        int32_t pid
        uint32_t uid
        uint64_t start_time, attached_at, pid_ns
        char label[64]
        uint64_t device_bytes
        uint32_t device_state, device_memory
        uint32_t with_identity, epoch

    int kvshm_get_process(kvshm_arena *a, uint32_t slot, kvshm_process *out)
    ctypedef void (*kvshm_broken_fn)(int invariant, uint32_t id, const char *what,
                                     void *user) noexcept
    int64_t kvshm_is_valid(kvshm_arena *a, kvshm_broken_fn fn, void *user)

    # Tenants and limits
    ctypedef struct kvshm_tenant:
        size_t size
        uint32_t tenant, weight
        uint64_t quota, used, share
        char name[32]

    int kvshm_tenant_number(kvshm_arena *a, const char *name)
    int64_t kvshm_get_tenants(kvshm_arena *a, kvshm_tenant *out, size_t cap)
    int kvshm_set_tenant(kvshm_arena *a, uint32_t tenant, uint64_t quota, uint32_t weight)
    int kvshm_set_pin_budget(kvshm_arena *a, uint64_t blocks)
    int kvshm_get_pin_budget(kvshm_arena *a, uint64_t *budget, uint64_t *pinned)

    # For policies
    ctypedef struct kvshm_block_record:
        uint64_t word
        uint64_t key[2]
        uint64_t seq
        uint32_t fut, stamp, parent, parent_check, child, sibling
        uint16_t tenant
        uint8_t flags, priority
        uint32_t freq_depth

    const kvshm_block_record *kvshm_block_table(kvshm_arena *a, uint64_t *n)

    ctypedef struct kvshm_policy:
        size_t size
        uint64_t version
        char name[32]
        uint32_t sample, flags, age_period, young, small, zero
        uint32_t shift[16]
        uint32_t rank[16]

    enum:
        KVSHM_POLICY_SECOND_CHANCE
        KVSHM_POLICY_MEMORY
        KVSHM_POLICY_SKETCH
        KVSHM_POLICY_ONCE
        KVSHM_POLICY_LEAF_QUEUE
        KVSHM_POLICY_QUEUES
        KVSHM_POLICY_TOUCHES
        KVSHM_POLICY_ALL

    ctypedef struct kvshm_shadow:
        size_t size
        const uint64_t *records
        uint32_t n
        uint32_t caches, ways, weight
        uint64_t sets
        uint64_t *entries
        double hits[8]
        uint32_t clock, bits, stale, zero
        kvshm_policy policy
    ctypedef int (*kvshm_controller_fn)(kvshm_shadow *s, void *user) noexcept nogil

    void kvshm_set_controller(kvshm_controller_fn fn, void *user)
    int64_t kvshm_step_policy(kvshm_arena *a)
    int kvshm_get_policy(kvshm_arena *a, kvshm_policy *out)
    int kvshm_set_policy(kvshm_arena *a, const kvshm_policy *policy)
    int64_t kvshm_mark_victims(kvshm_arena *a, const kvshm_handle *h, uint32_t n)
    int64_t kvshm_marks_left(kvshm_arena *a)
    int KVSHM_POST_MOVER, KVSHM_POST_EVICTOR, KVSHM_POST_CONTROLLER
    int kvshm_elect(kvshm_arena *a, uint32_t post)
    int kvshm_resign(kvshm_arena *a, uint32_t post)


# The initialisers of the header, as expressions.
cdef extern from *:
    """
    static inline kvshm_identity kvshm_identity_init(void) {
      kvshm_identity v = KVSHM_IDENTITY_INIT; return v; }
    static inline kvshm_options kvshm_options_init(void) {
      kvshm_options v = KVSHM_OPTIONS_INIT; return v; }
    static inline kvshm_fill_options kvshm_fill_options_init(void) {
      kvshm_fill_options v = KVSHM_FILL_OPTIONS_INIT; return v; }
    static inline kvshm_device_options kvshm_device_options_init(void) {
      kvshm_device_options v = KVSHM_DEVICE_OPTIONS_INIT; return v; }
    static inline kvshm_policy kvshm_policy_init(void) {
      kvshm_policy v = KVSHM_POLICY_INIT; return v; }
    static inline kvshm_tier_options kvshm_tier_options_init(void) {
      kvshm_tier_options v = KVSHM_TIER_OPTIONS_INIT; return v; }
    """
    kvshm_identity kvshm_identity_init() nogil
    kvshm_options kvshm_options_init() nogil
    kvshm_fill_options kvshm_fill_options_init() nogil
    kvshm_device_options kvshm_device_options_init() nogil
    kvshm_policy kvshm_policy_init() nogil
    kvshm_tier_options kvshm_tier_options_init() nogil
