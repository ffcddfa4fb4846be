/* SPDX-License-Identifier: Apache-2.0
 *
 * kvshm_policy.h - the table that every allocation evicts by, and the controller that tunes it: a
 * part of kvshm.h, which includes it.
 *
 * A candidate is the best of a sample of inactive blocks; from it the library walks to a cached
 * leaf. All processes go by one table, from the next allocation on; a new arena's is `adaptive`
 * (kvshm.eviction has it and the others by name). */
#ifndef KVSHM_POLICY_H
#define KVSHM_POLICY_H

#include "kvshm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Flags of a policy. */
enum {
  KVSHM_POLICY_SECOND_CHANCE = 1, /* a clock count > 0 spares a candidate once each */
  KVSHM_POLICY_MEMORY = 2,        /* uses of evicted keys are remembered */
  KVSHM_POLICY_SKETCH = 4,        /* in a count-min sketch, not in a tagged table */
  KVSHM_POLICY_ONCE = 8,          /* age since the first release, not since the last one */
  KVSHM_POLICY_LEAF_QUEUE = 16,   /* age of a parent begins when its last child goes */
  KVSHM_POLICY_QUEUES = 32,       /* a small and a main queue, as in S3-FIFO */
  KVSHM_POLICY_TOUCHES = 64,      /* uses are recorded for the controller of `adaptive` */
  KVSHM_POLICY_ALL = 127
};
typedef struct kvshm_policy { /* what the built-in scorer goes by; versioned, shared by all */
  size_t size;
  uint64_t version; /* counted up by set */
  char name[32];
  uint32_t sample;     /* candidates looked at, 1-64 */
  uint32_t flags;      /* KVSHM_POLICY_... */
  uint32_t age_period; /* uses are halved every so many uses per block; 0 = never */
  uint32_t young;      /* > 0: of blocks of rank 0 the youngest goes that is older than so much, in
                          1/1024 of the blocks, counted in releases to nobody */
  uint32_t small;      /* share of the small queue, in 1/1024 of the blocks; 1024: one queue */
  uint32_t zero;
  uint32_t shift[16]; /* by uses: of the lowest rank the greatest age >> shift[uses] goes */
  uint32_t rank[16];  /* by uses, 0-100: a lower one goes before any higher one */
} kvshm_policy;
#define KVSHM_POLICY_INIT {sizeof(kvshm_policy), 0, {0}, 0, 0, 0, 0, 0, 0, {0}, {0}}
KVSHM_API int kvshm_get_policy(kvshm_arena *a, kvshm_policy *out);
KVSHM_API int kvshm_set_policy(kvshm_arena *a, const kvshm_policy *in);

/* The controller of a policy that is tuned while it runs. Processes record a share of their uses
 * (KVSHM_POLICY_TOUCHES), in the arena; one process takes the records, in kvshm_tick or its helper
 * thread, and hands them to the function set here, which keeps shadow caches in the arena. */
typedef struct kvshm_shadow {
  size_t size;
  const uint64_t *records; /* n of them: [ hash: 48 | 0: 12 | uses: 4 ], in the order of use */
  uint32_t n;
  uint32_t caches, ways;
  uint32_t weight; /* the cache whose weight is in force; the function may change it */
  uint64_t sets;
  uint64_t *entries; /* caches x sets x ways of the function's own; all zero at first */
  double hits[8];    /* of each cache: the function's own, kept from one call to the next */
  uint32_t clock;    /* number of the first record, mod 2^32 */
  uint32_t bits;     /* one key in 2^bits is recorded */
  uint32_t stale;    /* 1: the table in force is not that of `weight`: publish it */
  uint32_t zero;
  kvshm_policy policy; /* to be published if the function returns 1 */
} kvshm_shadow;
typedef int (*kvshm_controller_fn)(kvshm_shadow *s, void *user);
/* For all arenas of this process; NULL: none. fn runs in the thread that ticks, possibly in several
 * at once for several arenas; it must not call into this library, wait, or throw. */
KVSHM_API void kvshm_set_controller(kvshm_controller_fn fn, void *user);
/* A step now: the number of records taken; 0 where another process leads. For who ticks seldom. */
KVSHM_API int64_t kvshm_step_policy(kvshm_arena *a);

#ifdef __cplusplus
}
#endif
#endif
