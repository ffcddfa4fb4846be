/* SPDX-License-Identifier: Apache-2.0
 *
 * kvshm.h - one KV cache for all engine processes of a host.
 *
 * CONVENTIONS (they hold for every function unless its comment says otherwise)
 *
 *  1 Errors    A function returns 0 or a count on success and a negative code on failure: -errno
 *              or -KVSHM_E... (10001 and up). errno is not touched. kvshm_strerror() names both.
 *              Any call may return -EINVAL (a NULL or senseless argument; also an id out of range),
 *              -KVSHM_ECLOSED (handle closed), -KVSHM_EFORKED (used in a forked child: attach anew)
 *              and -ESTALE (the arena was removed or replaced: what is held stays readable, release
 *              it, then open again). These four are not repeated below.
 *  2 Units     Sizes are bytes, times are milliseconds. Every wait has a limit, which you give.
 *  3 Threads   Every function may be called from any thread at any time on one kvshm_arena.
 *              A handle, hold or lease may be used and given back by another thread of the process.
 *  4 Fork      A forked child inherits nothing: no mapping, no holds. Its calls say -KVSHM_EFORKED.
 *  5 Ownership The caller allocates all structs and arrays. Structs start with `size`
 *              (= sizeof, the KVSHM_..._INIT macros set it) and grow only at their end.
 *  6 Keys      16 bytes, never all zero (that means "no key"). See docs/keys.md.
 *  7 Handles   {id, seq}: a block and which of its lives. A handle holds nothing; it is the weak
 *              form. Functions that hold say so, and each hold is given back exactly once.
 *  8 Death     Whatever a process holds is given back after its death without its help.
 *  9 Noise     The library prints nothing and never ends the process; see kvshm_set_log().
 *
 * It includes its further parts (kvshm_device.h, kvshm_gds.h, kvshm_limits.h, kvshm_pages.h, kvshm_policy.h,
 * kvshm_tier.h) at its end: a program includes this file alone.
 */
#ifndef KVSHM_H
#define KVSHM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVSHM_VERSION_MAJOR 0
#define KVSHM_VERSION_MINOR 1
#define KVSHM_VERSION_PATCH 0
#define KVSHM_VERSION "0.1.0"
/* Version of what lies in shared memory. A bump makes every arena of an older version unusable
 * (it must be removed), so it is bumped only with a release. */
#define KVSHM_LAYOUT_VERSION 1

#if defined(__GNUC__)
#define KVSHM_API __attribute__((visibility("default")))
#else
#define KVSHM_API
#endif

#define KVSHM_NONE 0xffffffffu /* no block */
#define KVSHM_KEY_BYTES 16
#define KVSHM_SLOTS 48     /* processes attached at once */
#define KVSHM_MAX_PARTS 32 /* slices of a shared fill */
#define KVSHM_NAME_MAX 63  /* [a-z0-9][a-z0-9_-]*; the object is kvshm.NAME */

/* Own error codes, far from errno. */
enum {
  KVSHM_ECLOSED = 10001, /* the arena handle is closed or being closed */
  KVSHM_EFORKED,         /* the handle belongs to the parent process */
  KVSHM_ELAYOUT,         /* the object is no kvshm arena of this layout */
  KVSHM_EIDENTITY,       /* the arena belongs to another model identity */
  KVSHM_EGEOMETRY,       /* it has another block size than asked for */
  KVSHM_ENOTREADY,       /* its creator did not finish in time, or died */
  KVSHM_ENOSLOT,         /* all 48 slots are taken or draining */
  KVSHM_ENOSPACE,        /* no block to be had (all held, filling or pinned) */
  KVSHM_ENOTMINE,        /* the block is not held, or not being filled, by this process */
  KVSHM_ESTATE,          /* the block is in the wrong state for this call */
  KVSHM_EPART,           /* slice begun before, or not begun, or parts missing */
  KVSHM_EPENDING,        /* somebody is filling it: kvshm_wait(), then ask again */
  KVSHM_EUNSUPPORTED,    /* this host cannot do what was required (pinning, huge pages, locks) */
  KVSHM_EINUSE,          /* processes are attached: refused */
  KVSHM_ECANCELED,       /* kvshm_cancel_waits() ended, or forbids, this wait */
  KVSHM_EQUOTA,   /* over the quota of this process, or of the tenant, whose blocks are all held */
  KVSHM_EPINNED,  /* as many blocks as may be have priority 100 (kvshm_set_pin_budget) */
  KVSHM_ETOOLARGE /* more blocks than the arena has, or the tenant's quota allows: never fits */
};

typedef struct kvshm_arena kvshm_arena;
typedef uint64_t kvshm_lease; /* holds of n blocks, given back as one; 0 = none */

typedef struct kvshm_handle {
  uint64_t seq; /* life number of the block; 0 = no block */
  uint32_t id;
  uint32_t zero;
} kvshm_handle;

typedef uint8_t kvshm_key[KVSHM_KEY_BYTES];

/* ---- general -------------------------------------------------------------------------------- */

KVSHM_API const char *kvshm_version(void); /* of the library at run time */
/* Text for a code, with or without its sign; never NULL; static storage. */
KVSHM_API const char *kvshm_strerror(int code);
/* Why this thread's last call failed, in words: what was wanted, what was found, what to do. ""
 * when it did not fail, or when the code says it all. Valid until the thread's next call. */
KVSHM_API const char *kvshm_last_error(void);

enum { KVSHM_LOG_DEBUG = 0, KVSHM_LOG_INFO = 1, KVSHM_LOG_WARN = 2, KVSHM_LOG_ERROR = 3 };
typedef void (*kvshm_log_fn)(int level, const char *message, void *user);
/* One per process; NULL turns it off. May be called from the helper thread; must not call kvshm. */
KVSHM_API void kvshm_set_log(kvshm_log_fn fn, void *user);

/* ---- identity and keys (docs/keys.md) -------------------------------------------------------- */

enum {
  KVSHM_UNKNOWN_WEIGHTS = 1 /* weights may be left empty: whoever names this model shares with it */
};
typedef struct kvshm_identity {
  size_t size;
  /* UTF-8; NULL = ""; model must not be empty, nor weights (a fingerprint; also not "unknown",
   * "none", "null", "n/a", "?" or an algorithm without its digest) without KVSHM_UNKNOWN_WEIGHTS */
  const char *model, *weights, *dtype, *layout, *parallel, *space;
  uint32_t block_tokens; /* 1, 2, 4 ... 1024 */
  uint32_t epoch;        /* of the namespace `space` */
  uint32_t flags;        /* part of no key or fingerprint */
  uint32_t zero;
} kvshm_identity;
#define KVSHM_IDENTITY_INIT {sizeof(kvshm_identity), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

typedef struct kvshm_extra { /* what else tells blocks apart: salt, adapter, media, KV group */
  uint32_t type;
  uint32_t length;
  const void *data;
} kvshm_extra;
enum {
  KVSHM_EXTRA_SALT = 1,
  KVSHM_EXTRA_ADAPTER,
  KVSHM_EXTRA_MEDIA,
  KVSHM_EXTRA_GROUP,
  KVSHM_EXTRA_OTHER
};

/* key: what all keys of this identity are bound to (no secret: who knows the fields can derive it;
 * isolation between tenants comes from a salt). fingerprint: what an arena is compared by, without
 * the epoch. -ENAMETOOLONG: more than 1023 bytes as JSON. */
KVSHM_API int kvshm_identity_derive(const kvshm_identity *id, uint8_t key[32],
                                    uint8_t fingerprint[16]);
/* One line of JSON; returns its length (not counting the NUL) or -ENOSPC. */
KVSHM_API int64_t kvshm_identity_text(const kvshm_identity *id, char *buf, size_t cap);
KVSHM_API int kvshm_extra_digest(const uint8_t key[32], const kvshm_extra *items, size_t n,
                                 uint8_t out[16]);
/* Chained keys of the full blocks in tokens[]; parent = key before the first, NULL at the root;
 * extra may be NULL. Returns their number, at most cap. */
KVSHM_API int64_t kvshm_keys_tokens(const uint8_t key[32], const uint8_t extra[16],
                                    const uint8_t parent[16], const uint32_t *tokens,
                                    size_t ntokens, uint32_t block_tokens, kvshm_key *out,
                                    size_t cap);
/* Binds an engine's own block hashes (n of hash_len bytes, 8 to 128 each, one after the other) to
 * the identity. */
KVSHM_API int64_t kvshm_keys_hashes(const uint8_t key[32], const uint8_t extra[16],
                                    const void *hashes, size_t hash_len, size_t n, kvshm_key *out);

/* ---- arenas ---------------------------------------------------------------------------------- */

enum { KVSHM_AUTO = 0, KVSHM_REQUIRE = 1, KVSHM_OFF = 2 }; /* modes of pin and huge */
enum { KVSHM_NUMA_AUTO = -1, KVSHM_NUMA_INTERLEAVE = -2 }; /* or a node number >= 0 */
enum {
  KVSHM_NO_HELPER = 1 /* no helper thread: call kvshm_tick() yourself, about twice a second */
};

typedef struct kvshm_options {
  size_t size;
  uint64_t bytes; /* of the whole object, metadata included; 0 = from blocks */
  uint64_t
      block_bytes; /* multiple of 64; 0 = blocks without data (replay, tests); attach: 0 = any */
  uint64_t blocks; /* 0 = as many as fit into bytes */
  const kvshm_identity *identity; /* NULL = a raw arena, or attach to whatever is there */
  const char *dir;                /* NULL = the shm mount; else a tmpfs or hugetlbfs directory */
  const char *label;              /* of this process, for the inspector; NULL = its command name */
  const char *group;              /* NULL = mode 0600; a group's name = 0660 for that group */
  uint32_t timeout_ms;            /* for creating or waiting for the creator; 0 = 10 s */
  uint32_t flags;
  uint32_t pin;  /* mlock: AUTO tries, REQUIRE fails with -KVSHM_EUNSUPPORTED, OFF */
  uint32_t huge; /* 2 MiB pages: likewise */
  int32_t numa;
  uint32_t reap_ms; /* helper's interval; 0 = 500 */
  uint64_t quota;   /* blocks that this process may hold or fill at once; 0 = no limit */
  uint64_t reserved[7];
} kvshm_options;
#define KVSHM_OPTIONS_INIT                                                        \
  {sizeof(kvshm_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, KVSHM_NUMA_AUTO, 0, 0, \
   {0, 0, 0, 0, 0, 0, 0}}

/* Attach, or create if there is none; of several racing processes one creates, the others wait.
 * name "auto" = user + identity. Errors: -KVSHM_EIDENTITY, -KVSHM_EGEOMETRY, -KVSHM_ELAYOUT,
 * -KVSHM_ENOTREADY, -KVSHM_ENOSLOT, -KVSHM_EUNSUPPORTED, -ENOSPC (mount too small), -ENOMEM,
 * -EACCES, -EBADMSG (damaged). */
KVSHM_API int kvshm_open(kvshm_arena **out, const char *name, const kvshm_options *opts);
KVSHM_API int kvshm_create(kvshm_arena **out, const char *name,
                           const kvshm_options *opts); /* -EEXIST */
KVSHM_API int kvshm_attach(kvshm_arena **out, const char *name,
                           const kvshm_options *opts); /* -ENOENT */
/* Each of them takes a slot of its own, also in a process that is attached already: such a process
 * is two to the others, and each handle has its own holds.
 *
 * options.quota keeps a process from holding much when it wedges (stopped, a thread that never
 * comes back): what a living process holds is never taken from it. A block counts once, however
 * often it is held here, and so does each one being filled. What would go beyond it is refused with
 * -KVSHM_EQUOTA; a look-up of many keys holds what fits, and says so only if that is nothing. */
/* Detach: waits until no other call runs and no guarded ring is left, gives back all holds and
 * leases. -EBUSY at the time-out (nothing changed; threads that wait: kvshm_cancel_waits() first).
 * The handle is dead afterwards; its use says -KVSHM_ECLOSED, as does a second close. The arena
 * itself stays. With a device registration that takes longer to undo than the time-out: -EBUSY,
 * with all else done; the undoing goes on by itself, and the next close waits for its end. */
KVSHM_API int kvshm_close(kvshm_arena *a, uint32_t timeout_ms);
/* Mark dead and unlink, with the image of its tier, whose file stays. -KVSHM_EINUSE while a process
 * is attached, unless force. -ENOENT. */
KVSHM_API int kvshm_remove(const char *name, const char *dir, int force);
/* The name that "auto" stands for. Returns its length. */
KVSHM_API int64_t kvshm_auto_name(const kvshm_identity *id, char *buf, size_t cap);

typedef struct kvshm_info {
  size_t size;
  uint64_t bytes, block_bytes, blocks, data_offset, metadata_bytes, private_bytes;
  uint8_t uuid[16], fingerprint[16];
  uint64_t page_bytes; /* of the data, as found */
  uint32_t slot, slots_used, pinned, created, raw;
  int32_t numa;
  char name[64];
  char path[256];
  char identity[1024];
  char charged_group[256]; /* control group that pays for the pages: the creator's; "" = unknown */
  /* The last process that came with another identity and was refused; their number is
   * foreign_attaches_total of the statistics. Seconds since the epoch, 0 = none did. */
  uint64_t foreign_at, foreign_pid;
  char foreign_identity[1024];
} kvshm_info;
/* clang-format off */
#define KVSHM_INFO_INIT \
  {sizeof(kvshm_info), 0, 0, 0, 0, 0, 0, {0}, {0}, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, {0}, {0}, 0, 0, \
   {0}}
/* clang-format on */
KVSHM_API int kvshm_get_info(kvshm_arena *a, kvshm_info *out);

/* ---- filling blocks -------------------------------------------------------------------------- */

enum {                      /* flags of an allocation */
       KVSHM_QUIET = 1,     /* do not announce: the key shows only when registered */
       KVSHM_NO_CACHE = 2,  /* closed at its last release */
       KVSHM_UNCHAINED = 4, /* keys[i-1] is not the parent of keys[i] */
       KVSHM_NO_EVICT = 8   /* free blocks only */
};
typedef struct kvshm_fill_options {
  size_t size;
  uint32_t flags;
  uint32_t parts;      /* slices that make a block whole, 1-32; 0 = 1 */
  uint32_t timeout_ms; /* to wait for space; 0 = do not wait */
  uint32_t priority;   /* 0-100, 100 = never evicted; 0 = the default 50 */
  uint32_t tenant;     /* row of the tenant table */
  uint32_t zero;
  kvshm_handle parent; /* of the first block, held by the caller; {0} = a root */
  /* Counted from the allocation, in tenths of a second; 0 = for good. After ttl_ms a block is a
   * miss for everybody, and the first to go; who holds it keeps it. After priority_ms its priority
   * is the default again. */
  uint64_t ttl_ms, priority_ms;
} kvshm_fill_options;
#define KVSHM_FILL_OPTIONS_INIT \
  {sizeof(kvshm_fill_options), 0, 1, 0, 0, 0, 0, {0, KVSHM_NONE, 0}, 0, 0}

typedef struct kvshm_evicted { /* keys that an allocation pushed out */
  size_t size;
  kvshm_key *keys;
  size_t cap;   /* room in keys */
  size_t count; /* set by the call; more than cap = the rest was not stored */
} kvshm_evicted;

enum {                         /* what became of each key at allocate (announced) and at register */
       KVSHM_ST_NONE = 0,      /* no key given */
       KVSHM_ST_ANNOUNCED = 1, /* others can find and await it */
       KVSHM_ST_EXISTS = 2,    /* another block of this key is READY: match it, or fill privately */
       KVSHM_ST_PENDING = 3,   /* another process is filling it: wait, or fill privately */
       KVSHM_ST_FULL = 4,      /* no index entry to be had (none free, or a held block whose time
                                * to live is over has it): will stay private */
       KVSHM_ST_PRIMARY = 5,   /* registered, indexed */
       KVSHM_ST_DUPLICATE = 6, /* registered beside the present block */
       KVSHM_ST_PRESENT = 7, /* policy reject: mine was closed, the present block is held instead */
       KVSHM_ST_PRIVATE = 8  /* registered without an index entry */
};

/* n blocks or none. Holds each as its filler until register, publish or abort. keys may be NULL
 * (give
 * them to register). status: n entries or NULL. evicted may be NULL. -KVSHM_ENOSPACE: nothing
 * changed. -ETIMEDOUT: waited for space in vain, or for a thread of this process that was stopped
 * in the midst of one of these blocks (a second, without a limit of its own). -KVSHM_ECANCELED.
 * -KVSHM_EQUOTA, -KVSHM_EPINNED, -KVSHM_ETOOLARGE (at once, nothing evicted). kvshm_last_refusal()
 * has the reason. */
KVSHM_API int kvshm_allocate(kvshm_arena *a, uint32_t n, const kvshm_key *keys,
                             const kvshm_fill_options *opts, kvshm_handle *out, uint8_t *status,
                             kvshm_evicted *evicted);
/* Join a fill that another process (or thread) allocated; a member holds it like the allocator.
 * -ENOENT: over, or another life. */
KVSHM_API int kvshm_fill_join(kvshm_arena *a, kvshm_handle h);
/* A slice is begun once in a life, before its first byte, by who writes it: -KVSHM_EPART if begun
 * before. arrive: after its last byte (and completed transfer). */
KVSHM_API int kvshm_fill_begin(kvshm_arena *a, kvshm_handle h, uint32_t part);
KVSHM_API int kvshm_fill_arrive(kvshm_arena *a, kvshm_handle h, uint32_t part);
/* Any member of an announced (or registered) fill, when all parts arrived: the block becomes
 * READY, the membership a
 * hold. 0 also if another member was faster. -KVSHM_EPART: parts missing. */
KVSHM_API int kvshm_publish(kvshm_arena *a, kvshm_handle h);

enum { KVSHM_ALLOW = 0, KVSHM_REJECT = 1 }; /* duplicates of a key */
/* The allocator's publish: index entry, then READY. For one-part blocks begin and arrive are
 * implied. keys NULL = those of allocate. out[i] (may be NULL, may be == h) = the block now held
 * for
 * keys[i]; results[i] as above (may be NULL). In order; stops at the first error and returns the
 * number done, or the error when none was. */
KVSHM_API int64_t kvshm_register(kvshm_arena *a, const kvshm_handle *h, uint32_t n,
                                 const kvshm_key *keys, int policy, kvshm_handle *out,
                                 uint8_t *results);
/* Leave fills; who is last closes the block, its key is never visible. READY meanwhile: a release.
 * Each once; -KVSHM_ENOTMINE for those not held. */
KVSHM_API int kvshm_abort(kvshm_arena *a, const kvshm_handle *h, uint32_t n);

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Address of a block in this process; NULL: out of range, data-less, closed or forked. Reading
 * needs a hold, writing a
 * begun fill. */
KVSHM_API void *kvshm_block_data(kvshm_arena *a, uint32_t id);
/* Checked copies with non-temporal stores where they pay; counted in the statistics.
 * -KVSHM_ESTATE if the
 * block is not being filled (in) or not readable (out) by this process. -ERANGE. */
KVSHM_API int kvshm_copy_in(kvshm_arena *a, kvshm_handle h, uint64_t offset, const void *src,
                            uint64_t n);
KVSHM_API int kvshm_copy_out(kvshm_arena *a, kvshm_handle h, uint64_t offset, void *dst,
                             uint64_t n);
/* The bare copy of the two, for benchmarks and callers' own buffers. name of the variant in use. */
KVSHM_API void kvshm_stream_copy(void *dst, const void *src, size_t n);
KVSHM_API const char *kvshm_stream_copy_variant(void);

/* ---- transfers by an io_uring of your own ------------------------------------------------------
 *
 * After a SIGKILL the kernel lets the transfers of a dead process's io_uring land, some of them
 * after everything else of it has gone. A ring that writes into blocks which this process fills
 * must therefore be guarded, once, after it is made and before its first request: the blocks then
 * stay out of others' hands until the last of its transfers has landed. Rules for such a ring:
 *
 *  - its memory is not inherited by a fork (io_uring_ring_dontfork), and its descriptor is closed
 *    in a child: a child that keeps either keeps the dead process's blocks, too;
 *  - the guard's place in its table of files is not replaced, and the table not unregistered;
 *  - a block stays a fill (no abort, register or publish) while a transfer into it is under way;
 *  - it is ended before kvshm_close(), which waits for that up to its time-out, then says -EBUSY.
 *
 * Blocking reads and libaio need no guard: the kernel lets a process die only when they are over. */

/* Guards the ring with descriptor ring_fd: as the only entry of a new table of files (index =
 * KVSHM_NONE; -EBUSY: it has one), or at place `index` of the table it has (-ENXIO: none; -EINVAL:
 * no such place). Call it in the thread that submits (-EEXIST). No descriptor is left over. */
KVSHM_API int kvshm_ring_guard(kvshm_arena *a, int ring_fd, uint32_t index);
/* The guard by itself: a descriptor (>= 0, O_CLOEXEC), for a runtime that registers it by its own
 * means and then closes it. Whoever holds a copy of it holds the guard; so does a child forked in
 * between. */
KVSHM_API int kvshm_guard_fd(kvshm_arena *a);

/* ---- finding and holding --------------------------------------------------------------------- */

enum {
  KVSHM_NO_TOUCH = 1 /* do not count as a use */
};
/* One block: 0 and a hold on *out; -ENOENT; -KVSHM_EPENDING with *out = the fill under way. */
KVSHM_API int kvshm_acquire(kvshm_arena *a, const uint8_t key[16], uint32_t flags,
                            kvshm_handle *out);
/* Weak to strong: 0 and a hold if that life is still READY; -ENOENT; -KVSHM_EPENDING. */
KVSHM_API int kvshm_upgrade(kvshm_arena *a, kvshm_handle h, uint32_t flags);
/* Give back single holds (acquire, upgrade, register, publish). -KVSHM_ENOTMINE: not held. */
KVSHM_API int kvshm_drop(kvshm_arena *a, const kvshm_handle *h, uint32_t n);
/* The handle of a block that you hold (or of the present life, as a guess). */
KVSHM_API int kvshm_handle_of(kvshm_arena *a, uint32_t id, kvshm_handle *out);

/* The longest prefix of keys that is READY: its length n; ids[0..n) are held by *lease (n = 0:
 * *lease = 0). */
KVSHM_API int64_t kvshm_match(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys, uint32_t *ids,
                              kvshm_lease *lease);
/* With flags, a tag for the inspector, and the fill that the first miss waits for ({0}: none). */
KVSHM_API int64_t kvshm_match_with(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys,
                                   uint32_t flags, uint64_t tag, uint32_t *ids, kvshm_lease *lease,
                                   kvshm_handle *pending);
/* Every key by itself: ids[i] = block or KVSHM_NONE. Returns the hits; the lease has one hold a
 * hit. */
KVSHM_API int64_t kvshm_match_scattered(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys,
                                        uint32_t flags, uint64_t tag, uint32_t *ids,
                                        kvshm_lease *lease);
/* The distinct blocks among keys: ids[j] and which[j] (index of its first key) for j < return. */
KVSHM_API int64_t kvshm_scan(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys, uint32_t flags,
                             uint64_t tag, uint32_t *ids, uint32_t *which, kvshm_lease *lease);
enum { KVSHM_IN_G2 = 1, KVSHM_IN_G3 = 2, KVSHM_IN_G4 = 4, KVSHM_IS_FILLING = 8 };
/* Holds and touches nothing; a guess by the time you read it. mask: nkeys bytes. Returns how
 * many are not 0. */
KVSHM_API int64_t kvshm_presence(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys,
                                 uint8_t *mask);

/* Give back all holds of a lease, once; then -EBADF. */
KVSHM_API int kvshm_release(kvshm_arena *a, kvshm_lease lease);
/* Give back the holds from index `keep` on; the lease goes on with ids[0..keep). */
KVSHM_API int kvshm_lease_trim(kvshm_arena *a, kvshm_lease lease, uint32_t keep);
/* Number of holds and their ids (cap may be 0). */
KVSHM_API int64_t kvshm_lease_ids(kvshm_arena *a, kvshm_lease lease, uint32_t *ids, uint32_t cap);
/* Turn single holds that you have into one lease. -KVSHM_ENOTMINE: nothing changed. */
KVSHM_API int kvshm_lease_make(kvshm_arena *a, const kvshm_handle *h, uint32_t n, uint64_t tag,
                               kvshm_lease *lease);
/* Hold n blocks (by weak handle) beside all other holders until released: all or none; -ENOENT.
 * Dies with the process;
 * a pin that lasts is priority 100. */
KVSHM_API int kvshm_pin(kvshm_arena *a, const kvshm_handle *h, uint32_t n, uint64_t tag,
                        kvshm_lease *lease);
/* Closed at the last release (on) or kept (off); the last writer wins; needs a hold. Never off for
 * a duplicate or private block: 0, nothing changes. */
KVSHM_API int kvshm_set_no_cache(kvshm_arena *a, kvshm_handle h, int on);
/* 0-100; 100 is never evicted (-KVSHM_EPINNED: over the budget of pins); needs a hold. For good, or
 * for `ms`, after which the default of 50 returns. */
KVSHM_API int kvshm_set_priority(kvshm_arena *a, kvshm_handle h, uint32_t priority);
KVSHM_API int kvshm_set_priority_for(kvshm_arena *a, kvshm_handle h, uint32_t priority,
                                     uint64_t ms);
/* Until the fill is READY (0), over without it (-ENOENT), -ETIMEDOUT or -KVSHM_ECANCELED. Reaps
 * dead fillers. */
KVSHM_API int kvshm_wait(kvshm_arena *a, kvshm_handle h, uint32_t timeout_ms);
/* For an engine that shuts down. on: calls of this process that wait on `a` (for space, for a fill)
 * end at once with -KVSHM_ECANCELED, and so does each that would have to wait, until off. What
 * needs no wait goes on, giving back above all; other handles and other processes notice nothing.
 * From any thread, not from a signal handler. Works on a removed arena, too. */
KVSHM_API int kvshm_cancel_waits(kvshm_arena *a, int on);

/* ---- objects: many blocks under one key ------------------------------------------------------
 *
 * For a state that is larger than a block (a whole sequence): n blocks, contiguous where the free
 * map allows, under one head key. It is there as a whole or not at all: its head is announced
 * first and registered last, and a get holds every block or says -ENOENT. An object handle is used
 * by one thread at a time; each is closed exactly once. */

typedef struct kvshm_object kvshm_object;
typedef struct kvshm_piece { /* laid out as struct iovec */
  void *data;
  size_t bytes;
} kvshm_piece;

/* Room for `bytes` (> 0), to be written by the caller. -EEXIST: it is there, get it.
 * -KVSHM_EPENDING: another process is putting it, or has not yet given back what is left of it
 * (kvshm_acquire of the key says which fill to wait for, if any). -KVSHM_ENOSPACE (also: the index
 * is full around its keys), -ETIMEDOUT, -KVSHM_ECANCELED, -ENOMEM as kvshm_allocate. Of opts, parts
 * and parent are not used, of its flags only KVSHM_NO_CACHE and KVSHM_NO_EVICT. */
KVSHM_API int kvshm_object_create(kvshm_arena *a, const uint8_t key[16], uint64_t bytes,
                                  const kvshm_fill_options *opts, kvshm_object **out);
/* Publish: found by all from now on, and no longer to be written. -KVSHM_ESTATE: committed
 * before. */
KVSHM_API int kvshm_object_commit(kvshm_object *o);
/* Hold it for reading. -ENOENT: not there, being put, or of an ordinary block. */
KVSHM_API int kvshm_object_get(kvshm_arena *a, const uint8_t key[16], kvshm_object **out);
KVSHM_API uint64_t kvshm_object_bytes(const kvshm_object *o);
/* Its bytes if they lie in one piece, else NULL. */
KVSHM_API void *kvshm_object_data(const kvshm_object *o);
/* Its pieces in order, neighbours joined. Returns their number; fills at most cap. */
KVSHM_API int64_t kvshm_object_pieces(const kvshm_object *o, kvshm_piece *pieces, size_t cap);
/* Copies of a part, counted in the statistics. -ERANGE, -KVSHM_ESTATE (write after commit). */
KVSHM_API int kvshm_object_write(kvshm_object *o, uint64_t offset, const void *src, uint64_t n);
KVSHM_API int kvshm_object_read(const kvshm_object *o, uint64_t offset, void *dst, uint64_t n);
/* Give its holds back; not committed: nothing of it will ever be seen. NULL is fine. */
KVSHM_API void kvshm_object_close(kvshm_object *o);

/* ---- looking after an arena ------------------------------------------------------------------ */

/* Evict these keys now where nobody holds them. Returns how many went. */
KVSHM_API int64_t kvshm_evict(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys);
/* Evict every inactive block, also those of priority 100. Returns how many went. */
KVSHM_API int64_t kvshm_clear(kvshm_arena *a);
/* clear, and then all blocks must be free: else -EBUSY and both figures are set. */
KVSHM_API int kvshm_reset_inactive(kvshm_arena *a, uint64_t *expected, uint64_t *actual);

/* The epoch of the arena's namespace, 0 when it was made. Whoever takes it into his identity (`epoch`)
 * finds nothing that was stored, or is still being stored, under an older one. kvshm_space_epoch is
 * one read; kvshm_bump_epoch adds 1 for all attached processes at once and returns the new epoch.
 * Blocks of before stay, unreachable, until they are evicted. */
KVSHM_API int kvshm_space_epoch(kvshm_arena *a, uint32_t *out);
KVSHM_API int64_t kvshm_bump_epoch(kvshm_arena *a);

typedef struct kvshm_reap_report {
  size_t size;
  uint32_t slots_dead;     /* found with a free life byte */
  uint32_t slots_cleared;  /* of these, now wholly given back */
  uint32_t slots_draining; /* a device may still write for them */
  uint32_t zero;
  uint64_t holds, fills, evictions; /* given back: READY bits, FILLING, EVICTING */
} kvshm_reap_report;
#define KVSHM_REAP_REPORT_INIT {sizeof(kvshm_reap_report), 0, 0, 0, 0, 0, 0, 0}
/* Give back what dead processes held. Safe at any time. report may be NULL. */
KVSHM_API int kvshm_reap(kvshm_arena *a, kvshm_reap_report *report);
/* What the helper thread does once per interval. */
KVSHM_API int kvshm_tick(kvshm_arena *a);

/* Statistics: gauges are counted by a walk over all blocks; totals are summed over all slots, dead
 * ones included. One list gives the struct and the names that Python, JSON and Prometheus use. */
#define KVSHM_GAUGE_FIELDS(X)                                                   \
  X(blocks_total, "blocks in the arena")                                        \
  X(blocks_free, "blocks that are empty")                                       \
  X(blocks_filling, "blocks being filled")                                      \
  X(blocks_held, "READY blocks that somebody holds")                            \
  X(blocks_inactive, "READY blocks that nobody holds: matchable and evictable") \
  X(blocks_evicting, "blocks on their way to FREE or to a new life")            \
  X(slots_used, "attached processes, dead ones not yet reaped included")
#define KVSHM_COUNTER_FIELDS(X)                                                          \
  X(lookups_total, "keys asked for")                                                     \
  X(hits_total, "keys found and held")                                                   \
  X(misses_total, "keys not found")                                                      \
  X(pending_total, "keys found being filled")                                            \
  X(touches_total, "uses counted for eviction")                                          \
  X(allocated_total, "blocks allocated")                                                 \
  X(alloc_refused_total, "allocations refused for want of space")                        \
  X(rollbacks_total, "allocations that claimed victims and gave them back")              \
  X(evicted_total, "blocks evicted for an allocation")                                   \
  X(evict_steps_total, "chain steps walked to a cached leaf")                            \
  X(evict_looks_total, "descriptors looked at for a victim, along the hand")             \
  X(removed_total, "blocks evicted on request (evict, clear, reset)")                    \
  X(registered_total, "blocks published with an index entry")                            \
  X(duplicates_total, "blocks published as duplicates")                                  \
  X(dup_pending_total, "of these, because the key was being filled elsewhere")           \
  X(rejected_total, "blocks closed because their key was present")                       \
  X(private_total, "blocks published without an index entry")                            \
  X(aborted_total, "fills left without being published")                                 \
  X(released_total, "holds given back")                                                  \
  X(revived_total, "last drops overtaken by a new hold")                                 \
  X(closed_total, "blocks closed at their last release")                                 \
  X(waits_total, "waits for a fill or for space")                                        \
  X(reaped_slots_total, "dead slots cleared")                                            \
  X(reaped_holds_total, "holds of dead processes given back")                            \
  X(reaped_fills_total, "fills of dead processes given back")                            \
  X(copy_in_bytes_total, "bytes copied into blocks")                                     \
  X(copy_out_bytes_total, "bytes copied out of blocks")                                  \
  X(misuse_total, "calls refused because the caller held nothing of the kind")           \
  X(device_registered_total, "pieces of the data registered with a device")              \
  X(device_foreign_total, "pieces found registered by somebody else")                    \
  X(device_refused_total, "calls to register that a device refused")                     \
  X(device_undone_total, "pieces unregistered, or gone with their device")               \
  X(device_stuck_total, "pieces that a device would not unregister")                     \
  X(foreign_attaches_total, "processes refused because they came with another identity") \
  X(quota_refused_total, "blocks refused because of the caller's own quota")             \
  X(refused_held_total, "allocations refused: the blocks are held or being filled")      \
  X(refused_pinned_total, "allocations and pins refused because of pinned blocks")       \
  X(refused_quota_total, "allocations refused by a quota, of the process or a tenant")   \
  X(refused_size_total, "allocations refused that could never fit")                      \
  X(refused_no_free_total, "allocations refused that were not to evict")                 \
  X(touch_records_total, "uses recorded for the controller of the policy")               \
  X(tier_hits_total, "keys found on disk")                                               \
  X(tier_loaded_total, "blocks loaded from disk")                                        \
  X(tier_load_failed_total, "loads from disk that failed, whatever the reason")          \
  X(tier_damaged_total, "of these, because the bytes were not those that were stored")   \
  X(tier_offered_total, "blocks offered to the disk")                                    \
  X(tier_present_total, "of these, on disk already")                                     \
  X(tier_rejected_total, "of these, not offered often enough yet")                       \
  X(tier_dropped_total, "of these, dropped: queue full, no room, evicted meanwhile")     \
  X(tier_stored_total, "blocks written to disk")                                         \
  X(tier_store_failed_total, "writes to disk that failed")                               \
  X(tier_read_bytes_total, "bytes read from disk")                                       \
  X(tier_write_bytes_total, "bytes written to disk")                                     \
  X(tier_switches_total, "changes of what moves the bytes, in operation")                \
  X(tier_cancelled_total, "offers taken back before they were begun")                    \
  X(tier_prefetched_total, "keys asked for ahead, taken from the disk")                  \
  X(tier_takeovers_total, "times that this process became the one that moves for all")   \
  X(tier_skipped_total, "look-ups that left the disk alone: slow, stalled or read back")

#define KVSHM_STAT_MEMBER(name, text) uint64_t name;
typedef struct kvshm_stats {
  size_t size;
  KVSHM_GAUGE_FIELDS(KVSHM_STAT_MEMBER)
  KVSHM_COUNTER_FIELDS(KVSHM_STAT_MEMBER)
} kvshm_stats;
#undef KVSHM_STAT_MEMBER
KVSHM_API int kvshm_get_stats(kvshm_arena *a, kvshm_stats *out); /* set out->size first */
/* Only this process's counters; gauges are 0. */
KVSHM_API int kvshm_get_own_stats(kvshm_arena *a, kvshm_stats *out);

enum {
  KVSHM_FREE = 0,
  KVSHM_FILLING = 1,
  KVSHM_READY = 2,
  KVSHM_EVICTING = 3,
  KVSHM_READY_LAST = 6
};
enum {
  KVSHM_F_DUPLICATE = 1,
  KVSHM_F_ANNOUNCED = 2,
  KVSHM_F_FAILED = 4,
  KVSHM_F_PRIVATE = 8,
  KVSHM_F_MORTAL = 128 /* has a time to live */
};

typedef struct kvshm_block_info { /* a snapshot; fields are not mutually consistent */
  size_t size;
  kvshm_key key;
  uint64_t seq, holders; /* holders: one bit a slot */
  uint32_t state, flags, parent, child, primary, depth, stamp, frequency;
  uint32_t parts, begun, arrived, priority, tenant, own_holds; /* own_holds: of this process */
  /* ms left of its time to live, and of its priority; 0 = over, KVSHM_FOR_GOOD = has no end */
  uint64_t ttl_ms, priority_ms;
} kvshm_block_info;
#define KVSHM_FOR_GOOD UINT64_MAX
#define KVSHM_BLOCK_INFO_INIT \
  {sizeof(kvshm_block_info), {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
KVSHM_API int kvshm_get_block(kvshm_arena *a, uint32_t id, kvshm_block_info *out);

typedef struct kvshm_process { /* a slot */
  size_t size;
  uint32_t slot, used, alive, device_busy, draining, self;
  int32_t pid;
  uint32_t uid;
  uint64_t start_time;  /* clock ticks after boot, as in /proc/PID/stat */
  uint64_t attached_at; /* seconds since the epoch */
  uint64_t pid_ns;
  char label[64];
  uint64_t device_bytes;  /* of the blocks, registered with its device */
  uint32_t device_state;  /* KVSHM_DEVICE_... of its registration */
  uint32_t device_memory; /* 1 = a device may write: it drains after a death */
  uint32_t with_identity; /* attached with an identity, of this epoch: keys of another are misses */
  uint32_t epoch;
} kvshm_process;
#define KVSHM_PROCESS_INIT \
  {sizeof(kvshm_process), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0, 0, 0}
KVSHM_API int kvshm_get_process(kvshm_arena *a, uint32_t slot, kvshm_process *out);

/* Walks everything and calls fn for each broken invariant (docs/protocol.md numbers them). Returns
 * their number. On a live arena a few may be transient: look three times. */
typedef void (*kvshm_broken_fn)(int invariant, uint32_t id, const char *what, void *user);
KVSHM_API int64_t kvshm_is_valid(kvshm_arena *a, kvshm_broken_fn fn, void *user);

/* ---- for policies (kvshm.eviction)
 * ------------------------------------------------------------ */

/* The hot line of a block as it lies in shared memory, layout 1 (docs/protocol.md draws it). Read
 * only; read each field once; everything but `word` is a hint. */
typedef struct kvshm_block_record {
  uint64_t word;
  uint64_t key[2];
  uint64_t seq;
  uint32_t fut, stamp, parent, parent_check, child, sibling;
  uint16_t tenant;
  uint8_t flags, priority; /* priority: 0-100, and 128 more while it is for a while only */
  uint32_t freq_depth;
} kvshm_block_record;
/* All records of the arena; valid until close. */
KVSHM_API const kvshm_block_record *kvshm_block_table(kvshm_arena *a, uint64_t *n);

/* Victims chosen beforehand; an allocation takes them first, checked by life number. Returns how
 * many were taken in (the ring holds 8192). */
KVSHM_API int64_t kvshm_mark_victims(kvshm_arena *a, const kvshm_handle *h, uint32_t n);
KVSHM_API int64_t kvshm_marks_left(kvshm_arena *a);

/* Work that one process of an arena does for all. The kernel vacates a post when its holder ends,
 * however that comes; who stands by asks again, a few times a second. */
enum {
  KVSHM_POST_MOVER = 0,     /* moves blocks between the tiers: the thread of a kvshm_tier_open */
  KVSHM_POST_EVICTOR = 1,   /* marks victims by a policy of its own (kvshm agent) */
  KVSHM_POST_CONTROLLER = 2 /* tunes the policy table */
};
/* 0: this handle has the post, now or since earlier; -EAGAIN: another handle, of this process or
 * another one, has it; -EINVAL, -ESTALE (removed), -KVSHM_EUNSUPPORTED (no locks here), -EBUSY (the
 * mover's, with a tier: its thread stands for it). Never waits.
 * Any thread. A forked child does not have what its parent has. */
KVSHM_API int kvshm_elect(kvshm_arena *a, uint32_t post);
/* Lets the post go, if this handle has it; 0 or -EINVAL. kvshm_close does the same. */
KVSHM_API int kvshm_resign(kvshm_arena *a, uint32_t post);

#ifdef __cplusplus
}
#endif

#include "kvshm_device.h" /* registration with a device */
#include "kvshm_gds.h"    /* blocks from NVMe to a GPU */
#include "kvshm_limits.h" /* tenants: quotas and shares; the budget of pins */
#include "kvshm_pages.h"  /* copies between an engine's paged KV tensors and blocks */
#include "kvshm_policy.h" /* the built-in eviction policies and their controller */
#include "kvshm_tier.h"   /* blocks on NVMe */

#endif
