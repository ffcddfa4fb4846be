// SPDX-License-Identifier: Apache-2.0
// Tenants: quotas, shares by weight, the budget of pins; counts that are right, and put right; and
// refusals that say why.
#include "blocks/tenants.hpp"

#include <signal.h>

#include <algorithm>

#include "capi/call.hpp"
#include "support.hpp"

using namespace kvshm_test;

namespace {

kvshm_fill_options as_tenant(std::uint32_t tenant, std::uint32_t priority = 0) {
  auto o = sized<kvshm_fill_options>();
  o.tenant = tenant;
  o.priority = priority;
  return o;
}

int allocate(kvshm_arena* a, std::uint32_t n, const kvshm_fill_options& o, handles_t* out,
             const keys_t* keys = nullptr) {
  out->resize(n);
  return kvshm_allocate(a, n, keys ? raw(*keys) : nullptr, &o, out->data(), nullptr, nullptr);
}

// Cached under keys first.. of the tenant, the first the oldest. The code of the first refusal.
int cache(kvshm_arena* a, std::uint32_t tenant, std::uint64_t first, std::uint32_t n,
          std::uint32_t priority = 0) {
  for (std::uint64_t i = first; i < first + n; i++) {
    handles_t h;
    const keys_t key = keys_of(i, 1);
    if (int rc = allocate(a, 1, as_tenant(tenant, priority), &h, &key)) return rc;
    EXPECT_EQ(kvshm_register(a, h.data(), 1, nullptr, KVSHM_ALLOW, h.data(), nullptr), 1);
    EXPECT_EQ(drop(a, h[0]), 0);
  }
  return 0;
}

std::uint64_t here(kvshm_arena* a, std::uint64_t first, std::uint64_t n) {
  std::uint64_t count = 0;
  for (std::uint64_t i = first; i < first + n; i++) count += present(a, key_of(i));
  return count;
}

std::uint64_t counted(kvshm_arena* a, std::uint32_t tenant) {
  return a->impl->tenants[tenant].used.load();
}
std::uint64_t counted_pins(kvshm_arena* a) { return a->impl->sb->pinned.load(); }

kvshm_tenant look(kvshm_arena* a, std::uint32_t tenant) {
  std::vector<kvshm_tenant> all(KVSHM_TENANTS, sized<kvshm_tenant>());
  const std::int64_t n = kvshm_get_tenants(a, all.data(), all.size());
  for (std::int64_t i = 0; i < n; i++)
    if (all[std::size_t(i)].tenant == tenant) return all[std::size_t(i)];
  return sized<kvshm_tenant>();
}

// What was counted is what the words say.
#define EXPECT_COUNTED(a, tenant, n)    \
  do {                                  \
    EXPECT_EQ(counted(a, tenant), n);   \
    EXPECT_EQ(look(a, tenant).used, n); \
  } while (0)

}  // namespace

TEST(Tenants, NothingIsCountedWithoutALimit) {
  Pool pool({.blocks = 16});
  ASSERT_EQ(cache(pool.a, 3, 0, 4), 0);
  EXPECT_EQ(counted(pool.a, 3), 0u);
  EXPECT_EQ(look(pool.a, 3).used, 4u);
  ASSERT_EQ(kvshm_set_tenant(pool.a, 5, 8, 0), 0);
  EXPECT_COUNTED(pool.a, 3, 4u);  // from the first limit on, all of them
  ASSERT_EQ(cache(pool.a, 3, 4, 2), 0);
  EXPECT_COUNTED(pool.a, 3, 6u);
  ASSERT_EQ(kvshm_set_tenant(pool.a, 5, 0, 0), 0);
  EXPECT_EQ(pool.a->impl->sb->limits.load(), 0u);
  EXPECT_EQ(kvshm_set_tenant(pool.a, 256, 1, 0), -EINVAL);
}

TEST(Tenants, AtItsQuotaATenantGivesUpItsOwnOldest) {
  Pool pool({.blocks = 32});
  ASSERT_EQ(kvshm_set_tenant(pool.a, 1, 4, 0), 0);
  ASSERT_EQ(cache(pool.a, 2, 100, 8), 0);  // older than all of tenant 1
  ASSERT_EQ(cache(pool.a, 1, 0, 4), 0);
  EXPECT_COUNTED(pool.a, 1, 4u);
  ASSERT_EQ(cache(pool.a, 1, 4, 3), 0);  // 20 are free, and are not for it
  EXPECT_COUNTED(pool.a, 1, 4u);
  EXPECT_EQ(here(pool.a, 0, 3), 0u);
  EXPECT_EQ(here(pool.a, 3, 4), 4u);
  EXPECT_EQ(here(pool.a, 100, 8), 8u);
  EXPECT_EQ(own_stats(pool.a).evicted_total, 3u);
  EXPECT_EQ(own_stats(pool.a).refused_quota_total, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Tenants, IsRefusedWhereAllOfItsBlocksAreHeld) {
  Pool pool({.blocks = 32});
  ASSERT_EQ(kvshm_set_tenant(pool.a, 1, 4, 0), 0);
  ASSERT_EQ(cache(pool.a, 1, 0, 4), 0);
  std::uint32_t ids[4];
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(keys_of(0, 4)), 4, ids, &lease), 4);
  handles_t h;
  EXPECT_EQ(allocate(pool.a, 1, as_tenant(1), &h), -KVSHM_EQUOTA);
  EXPECT_EQ(kvshm_last_refusal(), KVSHM_REFUSED_QUOTA);
  EXPECT_NE(std::string(kvshm_last_error()).find("quota of 4 blocks"), std::string::npos)
      << kvshm_last_error();
  auto wait = as_tenant(1);
  wait.timeout_ms = 30;
  EXPECT_EQ(allocate(pool.a, 1, wait, &h), -ETIMEDOUT);
  EXPECT_EQ(kvshm_last_refusal(), KVSHM_REFUSED_QUOTA);
  EXPECT_NE(std::string(kvshm_last_error()).find("quota"), std::string::npos);
  EXPECT_EQ(own_stats(pool.a).refused_quota_total, 2u);
  EXPECT_COUNTED(pool.a, 1, 4u);
  ASSERT_EQ(allocate(pool.a, 5, as_tenant(2), &h), 0);  // nobody else is bound
  EXPECT_EQ(abort_fills(pool.a, h), 0);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(allocate(pool.a, 4, as_tenant(1), &h), 0);
  EXPECT_EQ(here(pool.a, 0, 4), 0u);
  EXPECT_EQ(abort_fills(pool.a, h), 0);
  EXPECT_COUNTED(pool.a, 1, 0u);
  EXPECT_COUNTED(pool.a, 2, 0u);
}

TEST(Tenants, WhatNeverFitsIsRefusedAtOnce) {
  Pool pool({.blocks = 16});
  ASSERT_EQ(kvshm_set_tenant(pool.a, 1, 4, 0), 0);
  ASSERT_EQ(cache(pool.a, 1, 0, 4), 0);
  handles_t h;
  auto wait = as_tenant(1);
  wait.timeout_ms = 60000;
  EXPECT_EQ(allocate(pool.a, 5, wait, &h), -KVSHM_ETOOLARGE);
  EXPECT_EQ(kvshm_last_refusal(), KVSHM_REFUSED_SIZE);
  EXPECT_EQ(allocate(pool.a, 17, as_tenant(2), &h), -KVSHM_ETOOLARGE);
  EXPECT_EQ(kvshm_last_refusal(), KVSHM_REFUSED_SIZE);
  kvshm_object* o;
  EXPECT_EQ(kvshm_object_create(pool.a, key_of(9).data(), 17 * 256, nullptr, &o), -KVSHM_ETOOLARGE);
  const auto s = own_stats(pool.a);
  EXPECT_EQ(s.refused_size_total, 3u);
  EXPECT_EQ(s.evicted_total, 0u);
  EXPECT_EQ(here(pool.a, 0, 4), 4u);
  EXPECT_COUNTED(pool.a, 1, 4u);
}

TEST(Tenants, RefusalsAreToldApart) {
  Pool pool({.blocks = 8});
  handles_t h, more;
  ASSERT_EQ(cache(pool.a, 0, 0, 4, 100), 0);
  EXPECT_EQ(allocate(pool.a, 5, as_tenant(0), &h), -KVSHM_ENOSPACE);
  EXPECT_EQ(kvshm_last_refusal(), KVSHM_REFUSED_PINNED);
  EXPECT_STREQ(kvshm_refusal_name(kvshm_last_refusal()), "pinned");
  ASSERT_EQ(allocate(pool.a, 4, as_tenant(0), &h), 0);
  EXPECT_EQ(allocate(pool.a, 1, as_tenant(0), &more), -KVSHM_ENOSPACE);
  EXPECT_EQ(kvshm_last_refusal(), KVSHM_REFUSED_PINNED);
  EXPECT_EQ(allocate(pool.a, 5, as_tenant(0), &more), -KVSHM_ENOSPACE);
  EXPECT_EQ(kvshm_last_refusal(), KVSHM_REFUSED_HELD);
  auto free_only = as_tenant(0);
  free_only.flags = KVSHM_NO_EVICT;
  EXPECT_EQ(allocate(pool.a, 1, free_only, &more), -KVSHM_ENOSPACE);
  EXPECT_EQ(kvshm_last_refusal(), KVSHM_REFUSED_NO_FREE);
  const auto s = own_stats(pool.a);
  EXPECT_EQ(s.refused_pinned_total, 2u);
  EXPECT_EQ(s.refused_held_total, 1u);
  EXPECT_EQ(s.refused_no_free_total, 1u);
  EXPECT_EQ(s.alloc_refused_total, 4u);
  // A key that is there is no refusal, and counts as none.
  ASSERT_EQ(abort_fills(pool.a, h), 0);
  std::uint8_t status = 0;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key_of(2)), nullptr, h.data(), &status, nullptr), 0);
  EXPECT_EQ(status, KVSHM_ST_EXISTS);
  EXPECT_EQ(own_stats(pool.a).alloc_refused_total, 4u);
  EXPECT_EQ(kvshm_abort(pool.a, h.data(), 1), 0);
}

TEST(Tenants, WhoIsAboveItsShareLosesFirst) {
  Pool pool({.blocks = 32});
  ASSERT_EQ(kvshm_set_tenant(pool.a, 1, 0, 3), 0);
  ASSERT_EQ(kvshm_set_tenant(pool.a, 2, 0, 1), 0);
  ASSERT_EQ(cache(pool.a, 1, 0, 16), 0);  // the oldest, and below its share
  ASSERT_EQ(cache(pool.a, 2, 100, 16), 0);
  EXPECT_EQ(look(pool.a, 1).share, 24u);
  EXPECT_EQ(look(pool.a, 2).share, 8u);
  ASSERT_EQ(cache(pool.a, 1, 16, 8), 0);
  EXPECT_EQ(here(pool.a, 0, 24), 24u);
  EXPECT_EQ(here(pool.a, 100, 16), 8u);
  ASSERT_EQ(cache(pool.a, 2, 200, 8), 0);  // at its share: its own
  EXPECT_EQ(here(pool.a, 0, 24), 24u);
  EXPECT_EQ(here(pool.a, 200, 8), 8u);
  EXPECT_COUNTED(pool.a, 1, 24u);
  EXPECT_COUNTED(pool.a, 2, 8u);
  EXPECT_EQ(broken(pool.a), "");
}

// A priority does not keep what is above the share.
TEST(Tenants, ShareGoesBeforePriority) {
  Pool pool({.blocks = 32});
  ASSERT_EQ(kvshm_set_tenant(pool.a, 1, 0, 1), 0);
  ASSERT_EQ(cache(pool.a, 1, 0, 24, 99), 0);
  ASSERT_EQ(cache(pool.a, 2, 100, 8, 1), 0);
  ASSERT_EQ(cache(pool.a, 2, 108, 8, 1), 0);
  EXPECT_EQ(here(pool.a, 100, 16), 16u);
  EXPECT_EQ(here(pool.a, 0, 24), 16u);
}

TEST(Tenants, ALoweredQuotaShrinksAsOthersNeedRoom) {
  Pool pool({.blocks = 32});
  ASSERT_EQ(cache(pool.a, 2, 100, 16), 0);
  ASSERT_EQ(cache(pool.a, 1, 0, 16), 0);
  ASSERT_EQ(kvshm_set_tenant(pool.a, 1, 4, 0), 0);
  EXPECT_EQ(here(pool.a, 0, 16), 16u);
  ASSERT_EQ(cache(pool.a, 1, 16, 1), 0);  // one for one
  EXPECT_COUNTED(pool.a, 1, 16u);
  ASSERT_EQ(cache(pool.a, 2, 200, 12), 0);
  EXPECT_COUNTED(pool.a, 1, 4u);
  EXPECT_EQ(here(pool.a, 100, 16), 16u);
}

TEST(Tenants, ChainsOfTwoTenants) {
  Pool pool({.blocks = 16});
  ASSERT_EQ(kvshm_set_tenant(pool.a, 1, 2, 0), 0);
  // a head and a neck of tenant 1, a tail of tenant 2 below them
  keys_t chain = keys_of(0, 3);
  for (int i = 0; i < 3; i++) {
    auto o = as_tenant(i < 2 ? 1 : 2);
    kvshm_handle h;
    if (i) {
      ASSERT_EQ(kvshm_acquire(pool.a, chain[i - 1].data(), 0, &o.parent), 0);
    }
    ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(chain[i]), &o, &h, nullptr, nullptr), 0);
    ASSERT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, &h, nullptr), 1);
    EXPECT_EQ(drop(pool.a, h), 0);
    if (i) {
      EXPECT_EQ(drop(pool.a, o.parent), 0);
    }
  }
  ASSERT_EQ(cache(pool.a, 1, 50, 1), 0);  // makes room of its own, though not a leaf
  EXPECT_COUNTED(pool.a, 1, 2u);
  EXPECT_COUNTED(pool.a, 2, 1u);
  EXPECT_TRUE(present(pool.a, chain[2]));
}

TEST(Tenants, ADeathPutsNoCountOff) {
  Pool pool({.blocks = 64});
  ASSERT_EQ(kvshm_set_tenant(pool.a, 1, 8, 0), 0);
  ASSERT_EQ(kvshm_set_pin_budget(pool.a, 8), 0);
  ASSERT_EQ(cache(pool.a, 1, 0, 8), 0);
  for (const char* at : {"tenant.charge", "alloc.claimed", "alloc.flags", "alloc.reused",
                         "tenant.discharge", "unpin.life", "close.seq", "alloc.keyed"}) {
    Child child([&](Wire&) {
      kvshm_arena* a = attach(pool.name);
      Steps steps([&](const char* name) {
        if (std::string(name) == at) raise(SIGKILL);
      });
      handles_t h;
      const keys_t keys = keys_of(900, 2);
      if (std::string(at) == "unpin.life") {
        allocate(a, 2, as_tenant(1, 100), &h, &keys);
        abort_fills(a, h);
      }
      // Tenant 1 is at its quota and takes no free block.
      allocate(a, 2, as_tenant(std::string(at) == "alloc.claimed" ? 2 : 1), &h, &keys);
      abort_fills(a, h);
      return 0;
    });
    EXPECT_EQ(child.wait(), -SIGKILL) << at;
    ASSERT_EQ(kvshm_reap(pool.a, nullptr), 0);
    for (std::uint32_t t : {1u, 2u}) EXPECT_EQ(counted(pool.a, t), look(pool.a, t).used) << at;
    EXPECT_EQ(counted_pins(pool.a), 0u) << at;
    EXPECT_EQ(broken(pool.a), "") << at;
    ASSERT_EQ(cache(pool.a, 1, 0, 8), 0) << at;
  }
}

// A count that nobody's death explains is looked into before it refuses.
TEST(Tenants, AClaimThatFallsShortPutsNoCountOff) {
  Pool pool({.blocks = 8});
  ASSERT_EQ(kvshm_set_tenant(pool.a, 1, 7, 0), 0);
  ASSERT_EQ(cache(pool.a, 1, 0, 6), 0);  // so that free blocks have been its own
  ASSERT_EQ(kvshm_clear(pool.a), 6);
  handles_t held, more;
  ASSERT_EQ(allocate(pool.a, 4, as_tenant(2, 100), &held), 0);
  for (int i = 0; i < 3; i++)
    ASSERT_EQ(allocate(pool.a, 5, as_tenant(1, 100), &more), -KVSHM_ENOSPACE);
  EXPECT_EQ(counted(pool.a, 1), 0u);
  EXPECT_EQ(counted(pool.a, 2), 4u);
  EXPECT_EQ(counted_pins(pool.a), 4u);
  ASSERT_EQ(abort_fills(pool.a, held), 0);
  EXPECT_EQ(counted(pool.a, 2), 0u);
  EXPECT_EQ(counted_pins(pool.a), 0u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Tenants, AWrongCountRefusesNothing) {
  Pool pool({.blocks = 16});
  ASSERT_EQ(kvshm_set_tenant(pool.a, 1, 4, 0), 0);
  pool.a->impl->sb->recounted_at.store(0);
  pool.a->impl->tenants[1].used.store(400);
  EXPECT_EQ(cache(pool.a, 1, 0, 1), 0);
  EXPECT_COUNTED(pool.a, 1, 1u);
  ASSERT_EQ(kvshm_set_pin_budget(pool.a, 1), 0);
  pool.a->impl->sb->recounted_at.store(0);
  pool.a->impl->sb->pinned.store(7);
  EXPECT_EQ(cache(pool.a, 1, 1, 1, 100), 0);
  EXPECT_EQ(counted_pins(pool.a), 1u);
  pool.a->impl->tenants[1].used.store(std::uint64_t(-3));  // below nothing: nothing
  EXPECT_EQ(cache(pool.a, 1, 2, 2), 0);
}

TEST(Tenants, PinsHaveABudget) {
  Pool pool({.blocks = 16});
  std::uint64_t budget = 0, pinned = 9;
  ASSERT_EQ(kvshm_get_pin_budget(pool.a, &budget, &pinned), 0);
  EXPECT_EQ(budget, KVSHM_NO_BUDGET);
  EXPECT_EQ(pinned, 0u);
  ASSERT_EQ(kvshm_set_pin_budget(pool.a, 2), 0);
  ASSERT_EQ(cache(pool.a, 0, 0, 1, 100), 0);
  handles_t h;
  EXPECT_EQ(allocate(pool.a, 2, as_tenant(0, 100), &h), -KVSHM_EPINNED);
  EXPECT_EQ(kvshm_last_refusal(), KVSHM_REFUSED_PINNED);
  EXPECT_NE(std::string(kvshm_last_error()).find("1 blocks"), std::string::npos);
  kvshm_handle one = make_held(pool.a, key_of(10)), two = make_held(pool.a, key_of(11));
  EXPECT_EQ(kvshm_set_priority(pool.a, one, 100), 0);
  EXPECT_EQ(kvshm_set_priority(pool.a, one, 100), 0);  // counted once
  EXPECT_EQ(counted_pins(pool.a), 2u);
  EXPECT_EQ(kvshm_set_priority(pool.a, two, 100), -KVSHM_EPINNED);
  EXPECT_EQ(block(pool.a, two.id).priority, 50u);
  EXPECT_EQ(kvshm_set_priority(pool.a, one, 99), 0);
  EXPECT_EQ(kvshm_set_priority(pool.a, two, 100), 0);
  EXPECT_EQ(kvshm_evict(pool.a, raw(key_of(0)), 1), 1);  // on request a pinned one goes, too
  EXPECT_EQ(counted_pins(pool.a), 1u);
  EXPECT_EQ(own_stats(pool.a).refused_pinned_total, 2u);
  EXPECT_EQ(drop(pool.a, one), 0);
  EXPECT_EQ(drop(pool.a, two), 0);
  ASSERT_EQ(kvshm_set_pin_budget(pool.a, 0), 0);
  EXPECT_EQ(cache(pool.a, 0, 50, 1, 100), -KVSHM_EPINNED);
  ASSERT_EQ(kvshm_set_pin_budget(pool.a, KVSHM_NO_BUDGET), 0);
  EXPECT_EQ(cache(pool.a, 0, 50, 3, 100), 0);
  EXPECT_EQ(kvshm_clear(pool.a), 5);
  EXPECT_EQ(counted_pins(pool.a), 0u);
}

TEST(Tenants, NamesAreTheSameForAll) {
  Pool pool({.blocks = 16});
  kvshm_arena* b = pool.another();
  const int one = kvshm_tenant_number(pool.a, "acme");
  ASSERT_GT(one, 0);
  EXPECT_EQ(kvshm_tenant_number(b, "acme"), one);
  EXPECT_NE(kvshm_tenant_number(b, "umbrella"), one);
  EXPECT_STREQ(look(b, std::uint32_t(one)).name, "acme");
  EXPECT_EQ(kvshm_tenant_number(b, ""), -EINVAL);
  EXPECT_EQ(kvshm_tenant_number(b, nullptr), -EINVAL);
  EXPECT_EQ(kvshm_tenant_number(b, std::string(256, 'x').c_str()), -EINVAL);
  EXPECT_GT(kvshm_tenant_number(b, std::string(255, 'x').c_str()), 0);
  std::vector<bool> seen(256);
  int rc = 0;
  for (int i = 0; rc >= 0; i++) {
    rc = kvshm_tenant_number(b, ("n" + std::to_string(i)).c_str());
    if (rc < 0) break;
    EXPECT_FALSE(seen[std::size_t(rc)]);
    seen[std::size_t(rc)] = true;
  }
  EXPECT_EQ(rc, -ENOSPC);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 252);
  EXPECT_EQ(kvshm_tenant_number(b, "acme"), one);
}
