/* SPDX-License-Identifier: Apache-2.0
 *
 * kvshm_limits.h - tenants with quotas and shares, the budget of pins, and why an allocation was
 * refused: a part of kvshm.h, which includes it.
 *
 * A block belongs to the tenant that allocated it, a number from 0 to 255. A tenant with a quota
 * that is used up gives up blocks of its own for new ones, and is refused (-KVSHM_EQUOTA) only
 * where all of them are held. Where any tenant has a weight, the arena's blocks are shared by
 * weight among the tenants that have blocks (1 for those without): while it is full, whoever is
 * above its share loses blocks first. Limits are the arena's: they hold for all processes, until
 * they are changed or the arena is removed. Counts are kept only where some tenant has a limit;
 * a death may put them off until it is reaped. */
#ifndef KVSHM_LIMITS_H
#define KVSHM_LIMITS_H

#include "kvshm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVSHM_TENANTS = 256, KVSHM_TENANT_NAME_MAX = 255 };
typedef struct kvshm_tenant {
  size_t size;
  uint32_t tenant, weight; /* weight 0 = none was set */
  uint64_t quota;          /* blocks, 0 = none */
  uint64_t used;           /* blocks that are not free; counted in the words, by a walk */
  uint64_t share;          /* blocks by weight among those that have some; 0 = no weights */
  char name[32];           /* its first 31 bytes; "" = has none */
} kvshm_tenant;
#define KVSHM_TENANT_INIT {sizeof(kvshm_tenant), 0, 0, 0, 0, 0, {0}}
/* The number of a name (1 to 255 bytes), the same for all processes; given out at the first asking.
 * Numbers of one's own choice may meet one that a name got: use names or numbers. -ENOSPC: all 255
 * are given out. */
KVSHM_API int kvshm_tenant_number(kvshm_arena *a, const char *name);
/* Tenants that have a name, a limit or a block, in order: fills at most cap, returns how many. Set
 * out->size first (of the first). */
KVSHM_API int64_t kvshm_get_tenants(kvshm_arena *a, kvshm_tenant *out, size_t cap);
/* Both limits of a tenant, in force at once for what comes; what it has stays. */
KVSHM_API int kvshm_set_tenant(kvshm_arena *a, uint32_t tenant, uint64_t quota, uint32_t weight);
/* Blocks that may have priority 100 at once; KVSHM_NO_BUDGET = any number. What has it keeps it. */
#define KVSHM_NO_BUDGET UINT64_MAX
KVSHM_API int kvshm_set_pin_budget(kvshm_arena *a, uint64_t blocks);
/* The budget (KVSHM_NO_BUDGET: none) and how many have priority 100, by a walk; either may be NULL.
 */
KVSHM_API int kvshm_get_pin_budget(kvshm_arena *a, uint64_t *budget, uint64_t *pinned);

/* Why this thread's last kvshm_allocate or kvshm_object_create that found no room was refused,
 * whatever its code (-ETIMEDOUT, too); kvshm_set_priority of 100 as well. Counted by reason in the
 * statistics. A key that is there already is never a refusal: see the status below. */
enum {
  KVSHM_REFUSED_NOT = 0,    /* none was so far */
  KVSHM_REFUSED_HELD = 1,   /* too many blocks are held or being filled: it may fit later */
  KVSHM_REFUSED_PINNED = 2, /* it would fit but for blocks of priority 100; or over their budget */
  KVSHM_REFUSED_QUOTA = 3,  /* a quota: of the process, or the tenant's, all of it held */
  KVSHM_REFUSED_SIZE = 4,   /* more than the arena, or the tenant's quota: it will never fit */
  KVSHM_REFUSED_NO_FREE = 5 /* KVSHM_NO_EVICT, and not enough is free */
};
KVSHM_API int kvshm_last_refusal(void);
/* The same in one word: "held", "pinned", "quota", "size", "no_free"; "" for others. */
KVSHM_API const char *kvshm_refusal_name(int reason);

#ifdef __cplusplus
}
#endif
#endif
