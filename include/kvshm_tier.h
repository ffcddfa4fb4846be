/* SPDX-License-Identifier: Apache-2.0
 *
 * kvshm_tier.h - the NVMe tier (G3): blocks on disk, shared by all processes of an arena, kept over
 * restarts. A part of kvshm.h, which includes it.
 *
 * A tier is one file, or one per device, striped, and an image of its slots in shared memory: an
 * arena of its own, NAME-g3, whose blocks are the descriptors of the slots. So a disk slot has the
 * words, index, eviction and reaping of a block in memory, and P6 and P8 hold for it. One arena
 * owns the file at a time; after a reboot the next one adopts it and reads its descriptors back.
 *
 * Blocks go down (offload) by bounded queues in the arena, and one mover: the thread of one of the
 * processes that opened the tier, elected by a kernel lock, and replaced when that process ends,
 * however that comes. They come up (onboard) by the process that needs them, from the disk straight
 * into the arena's block; ahead of any need (prefetch) by the mover.
 * Checksums are verified at every load: what does not match is a miss, and its slot is freed. */
#ifndef KVSHM_TIER_H
#define KVSHM_TIER_H

#include "kvshm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVSHM_TIER_FILES = 8 }; /* files of one tier at most */
enum {                         /* what moves the bytes */
       KVSHM_TIER_AUTO = 0,    /* io_uring where it works, else threads */
       KVSHM_TIER_URING = 1,   /* io_uring or -KVSHM_EUNSUPPORTED */
       KVSHM_TIER_THREADS = 2  /* a pool of threads with pread and pwrite */
};
enum {                                 /* what goes down, and when */
       KVSHM_TIER_WRITE_THROUGH = 0,   /* each block, when it is registered */
       KVSHM_TIER_WRITE_OFF = 1,       /* only what kvshm_tier_store names */
       KVSHM_TIER_WRITE_LAZY = 2,      /* gathered from registration on: written when `gather` bytes
                                        * are there, the oldest is `age_ms` old, or at
                                        * kvshm_tier_flush */
       KVSHM_TIER_WRITE_WATERMARK = 3, /* while less than `low` of the blocks are free: those that
                                        * the policy would evict next */
       KVSHM_TIER_WRITE_RELEASE = 4,   /* each block, when this process gives it back */
       KVSHM_TIER_WRITE_IDLE = 5       /* gathered, and written only at kvshm_tier_flush: when an
                                        * engine has nothing better to do */
};

typedef struct kvshm_tier_options {
  size_t size;
  const char *const *paths; /* absolute; made if absent, mode 0600 */
  uint32_t npaths;
  uint32_t engine;       /* KVSHM_TIER_... */
  uint32_t direct;       /* O_DIRECT: KVSHM_AUTO tries, KVSHM_REQUIRE fails without, KVSHM_OFF */
  uint32_t sync;         /* 1 = fdatasync before a slot can be found: it survives a power cut */
  uint32_t write;        /* KVSHM_TIER_WRITE_... */
  uint32_t admit;        /* offers of a key, by any process, before it is written; halved as time
                         * goes on; 0 and 1 = the first */
  uint32_t queue;        /* blocks that wait in one of the arena's queues when this process offers
                         * one more, at most; 0 = 1024, up to 2048; more are dropped */
  uint32_t deadline_ms;  /* a transfer that takes longer: the tier is stalled; 0 = 5000 */
  uint64_t bytes;        /* budget of all files together; 0 = what the file has */
  uint64_t min_speed;    /* bytes a second that computing the blocks anew would make; a tier whose
                         * loads are slower (measured over 16 MiB and more) is not loaded from, but
                         * for one try every 10 s; 0 = whatever it makes */
  uint64_t gather;       /* bytes; 0 = 64 MiB */
  uint32_t age_ms;       /* 0 = 1000 */
  uint32_t low;          /* thousandths of the blocks; 0 = 250 */
  uint32_t mover;        /* KVSHM_AUTO: moves for all when elected; KVSHM_OFF: never; then somebody
                         * else must (kvshm agent), or nothing goes down */
  uint32_t stores;       /* blocks being written at once, at most; 0 = 16 */
  uint32_t min_prefix;   /* blocks up to there in its chain, its own included, that a block needs to
                         * be written for its own sake; 0 and 1 = any */
  uint32_t min_priority; /* of a block, to be written; 0 = any */
  uint64_t reserved[3];
} kvshm_tier_options;
#define KVSHM_TIER_OPTIONS_INIT \
  {sizeof(kvshm_tier_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0, 0, 0}}

/* Of these `write` (but for WATERMARK) and `queue` are how this process offers its blocks; admit,
 * gather, age_ms, low, stores, min_prefix, min_priority and WRITE_WATERMARK are those of whoever
 * moves: processes of one arena are best given the same ones. Blocks of a priority above 50 are
 * never gathered. */
/* Joins the tier, or makes it; once for a handle, which leaves it when it is closed. Does not wait
 * for descriptors to be read back: until then look-ups find memory only. Errors: -KVSHM_EINUSE (the
 * file belongs to another arena, both named), -KVSHM_EGEOMETRY (block size or slots differ),
 * -KVSHM_EIDENTITY, -KVSHM_ELAYOUT (no tier file, or of another format version: it is left alone),
 * -KVSHM_EUNSUPPORTED (a required engine or O_DIRECT), -ENOSPC (no room for one slot), -EEXIST (this
 * handle has one), and those of open(2). */
KVSHM_API int kvshm_tier_open(kvshm_arena *a, const kvshm_tier_options *opts);

enum { /* state of a tier in this process */
       KVSHM_TIER_NONE = 0,
       KVSHM_TIER_REBUILDING = 1, /* descriptors are being read back: memory only */
       KVSHM_TIER_OK = 2,
       KVSHM_TIER_NO_SPACE = 3, /* writes fail for want of room; loads go on */
       KVSHM_TIER_STALLED = 4,  /* transfers do not come back in time: taken out until they do */
       KVSHM_TIER_FAILED = 5,   /* the file cannot be used any more: see `why` */
       KVSHM_TIER_SLOW = 6      /* slower than min_speed: not loaded from; stores go on */
};
typedef struct kvshm_tier {
  size_t size;
  uint32_t state, engine, direct, files;   /* engine: the one that runs; direct: 0 = buffered */
  uint64_t slots, slot_bytes, slots_ready; /* slots_ready: counted by a walk */
  uint64_t rebuild_done, rebuild_total;    /* slots looked at, of how many */
  uint32_t queued, in_flight, align, registered; /* align: of offsets, by the file system;
                                                  * registered: 1 = the arena is, as buffers */
  uint32_t mover; /* 1 = this process moves for all, 2 = another one, 0 = nobody */
  uint32_t mover_pid;
  uint32_t fetching; /* keys asked for ahead that wait */
  uint32_t reserved;
  uint64_t read_speed; /* bytes a second of its loads of late, while some were under way; 0 = not
                        * known yet */
  char image[64];      /* arena of the slots: kvshm stat and verify take it, too */
  char why[256];       /* why this engine, or why not direct, or what is wrong; "" = as wished */
  char path[512];      /* its files, ':' between them */
} kvshm_tier;
#define KVSHM_TIER_INIT \
  {sizeof(kvshm_tier), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, {0}}
/* -ENOENT: this handle has no tier. */
KVSHM_API int kvshm_get_tier(kvshm_arena *a, kvshm_tier *out);
/* One word for a state ("ok", "no space", ...) or an engine ("io_uring", "threads"). */
KVSHM_API const char *kvshm_tier_state_name(uint32_t state);
KVSHM_API const char *kvshm_tier_engine_name(uint32_t engine);

/* Offers READY blocks to the tier, weakly: one that is evicted before its turn is dropped. They go
 * before those that go down by themselves. Returns how many were queued; for the rest the queue was
 * full. The mover looks whether they are on disk already, or not admitted, before it copies. */
KVSHM_API int64_t kvshm_tier_store(kvshm_arena *a, const kvshm_handle *h, uint32_t n);
/* Takes offers of these blocks back, whoever made them, that the mover has not begun: how many. What
 * it has begun, it ends. */
KVSHM_API int64_t kvshm_tier_cancel(kvshm_arena *a, const kvshm_handle *h, uint32_t n);
/* What was gathered is due: an engine is about to idle, or to end. Never waits. */
KVSHM_API int kvshm_tier_flush(kvshm_arena *a);
/* Flushes, and until all that this handle has queued is written or dropped, by whomever. -ETIMEDOUT:
 * also where nobody moves. */
KVSHM_API int kvshm_tier_drain(kvshm_arena *a, uint32_t timeout_ms);
/* Asks the mover to bring keys into memory that are on disk, if they are in neither hand: after the
 * loads that somebody waits for, before the stores. Nothing is held. Head first, so that a prefix
 * comes in order. Returns how many were queued (up to 2048 wait); never waits. Asked for longer than
 * 10 s ago they are dropped. */
KVSHM_API int64_t kvshm_prefetch(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys);
enum {                       /* where the disk stands with a key */
       KVSHM_TS_NONE = 0,    /* not there, or no look-up is possible now; it may wait in a queue */
       KVSHM_TS_WRITING = 1, /* being written */
       KVSHM_TS_STORED = 2   /* can be found */
};
/* One KVSHM_TS_... for each key: what became of an offer. Holds and touches nothing. */
KVSHM_API int kvshm_tier_status(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys,
                                uint8_t *status);
/* Forgets all slots that nobody reads or writes, also in the file; -EBUSY with some left, and
 * -ETIMEDOUT if the file could not be written in time (then they would come back after a reboot).
 * Returns how many went. */
KVSHM_API int64_t kvshm_tier_clear(kvshm_arena *a, uint32_t timeout_ms);

/* ---- looking up in both tiers, and loading --------------------------------------------------- */

typedef struct kvshm_load kvshm_load; /* what one look-up found, and its transfers */
enum {                                /* what became of each key of a load */
       KVSHM_LD_NONE = 0,             /* not part of the prefix */
       KVSHM_LD_MEMORY = 1,           /* was in memory, and is held */
       KVSHM_LD_LOADING = 2,          /* on its way from the disk */
       KVSHM_LD_AWAITED = 3,          /* another process is loading it, or thread: one transfer */
       KVSHM_LD_LOADED = 4,           /* is in memory now, and held */
       KVSHM_LD_FAILED = 5            /* a miss: checksum, I/O, no room, time */
};
/* The longest prefix of keys that is in memory or on disk. Holds what is in memory, and starts to
 * load the rest (the tier is left alone with KVSHM_NO_LOAD). Returns its length n, which a failure
 * may yet shorten, and *load, to be freed, which owns its holds; n = 0: *load = NULL. pending: as
 * for kvshm_match_with. Blocks for the loads are allocated as by kvshm_allocate; where there is no
 * room for all, the prefix is shorter. Never waits for a disk. */
enum { KVSHM_NO_LOAD = 2 };
KVSHM_API int64_t kvshm_match_load(kvshm_arena *a, const kvshm_key *keys, uint32_t nkeys,
                                   uint32_t flags, uint64_t tag, kvshm_load **load,
                                   kvshm_handle *pending);
/* Until all its transfers have ended, well or not: 0; -ETIMEDOUT, -KVSHM_ECANCELED. */
KVSHM_API int kvshm_load_wait(kvshm_load *load, uint32_t timeout_ms);
/* fn(user) once, when all have ended: at once if they have. From a thread of the library, which
 * must not be kept: hand the news on. One fn a load; NULL takes it back, and then it does not run. */
typedef void (*kvshm_load_fn)(void *user);
KVSHM_API int kvshm_load_notify(kvshm_load *load, kvshm_load_fn fn, void *user);
/* KVSHM_LD_... of each key, n of kvshm_match_load at most, and block ids (KVSHM_NONE where none is
 * held); either may be NULL. Returns the length of the prefix that is held now. */
KVSHM_API int64_t kvshm_load_status(kvshm_load *load, uint8_t *status, uint32_t *ids);
/* The held prefix, ended loads included, becomes a lease: its length, *lease (0 if that is 0). Once;
 * what lies behind it is given back. -EBUSY: transfers are under way. */
KVSHM_API int64_t kvshm_load_lease(kvshm_load *load, kvshm_lease *lease);
/* Gives back what is still its own. Transfers not yet begun are dropped; those under way end by
 * themselves, and what they bring stays in memory for others. NULL is fine. */
KVSHM_API void kvshm_load_free(kvshm_load *load);

#ifdef __cplusplus
}
#endif
#endif
