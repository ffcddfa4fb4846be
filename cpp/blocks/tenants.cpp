// SPDX-License-Identifier: Apache-2.0
#include "blocks/tenants.hpp"

#include <algorithm>
#include <bit>

#include "arena/lock.hpp"
#include "blocks/refusal.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;  // hints: see tenants.hpp
using Counts = std::uint32_t[kTenants];

// A count that is off may be below 0, or above what there is.
std::uint64_t sane(const Arena& a, std::uint64_t count) {
  return std::int64_t(count) < 0 ? 0 : std::min<std::uint64_t>(count, a.nblocks);
}

std::uint64_t used_of(const Arena& a, unsigned t) {
  return sane(a, a.tenants[t].used.load(kRelaxed));
}

// Before the first block of the tenant: who looks at tenants looks at those with a bit.
void see(Arena& a, std::uint32_t tenant) {
  auto& seen = a.sb->tenants_seen[tenant / 64];
  const std::uint64_t bit = std::uint64_t{1} << (tenant % 64);
  if (seen.load(kRelaxed) & bit) return;
  KVSHM_STEP("tenant.see");
  seen.fetch_or(bit, std::memory_order_seq_cst);
}

// Calls f(t) for each tenant that was ever seen.
template <class F>
void each_seen(const Arena& a, F f) {
  for (unsigned i = 0; i < kTenants / 64; i++)
    for (std::uint64_t w = a.sb->tenants_seen[i].load(kRelaxed); w; w &= w - 1)
      f(i * 64 + unsigned(std::countr_zero(w)));
}

std::uint64_t weight_of(const Arena& a, unsigned t) {
  const std::uint32_t w = a.tenants[t].weight.load(kRelaxed);
  return w ? w : 1;
}

std::uint64_t weights(const Arena& a) {
  std::uint64_t sum = 0;
  each_seen(a, [&](unsigned t) { sum += used_of(a, t) ? weight_of(a, t) : 0; });
  return sum;
}

std::uint64_t share_among(const Arena& a, unsigned t, std::uint64_t sum) {
  return std::uint64_t(static_cast<unsigned __int128>(a.nblocks) * weight_of(a, t) /
                       std::max<std::uint64_t>(sum, 1));
}

// One walk; true: nothing was counted by others meanwhile, so that it is right.
bool count_words(Arena& a) {
  std::uint64_t before[kTenants], pinned_before = a.sb->pinned.load(kRelaxed), pinned = 0;
  Counts counts = {};
  for (unsigned t = 0; t < kTenants; t++) before[t] = a.tenants[t].used.load(kRelaxed);
  for (std::uint32_t id = 0; id < a.nblocks; id++) {
    const Hot& h = a.hot[id];
    if (state(h.word.load(kRelaxed)) == kFree) continue;
    counts[h.tenant.load(kRelaxed) % kTenants]++;
    pinned += pins(h.priority.load(kRelaxed));
  }
  KVSHM_STEP("tenant.recount");
  bool right = true;
  for (unsigned t = 0; t < kTenants; t++) {
    if (before[t] == counts[t]) continue;
    KVSHM_STEP("tenant.recounted");
    right &= a.tenants[t].used.compare_exchange_strong(before[t], counts[t], kRelaxed);
  }
  if (pinned_before != pinned)
    right &= a.sb->pinned.compare_exchange_strong(pinned_before, pinned, kRelaxed);
  return right;
}

// What the rows ask for.
std::uint32_t wanted(const Arena& a) {
  std::uint32_t want = 0;
  for (unsigned t = 0; t < kTenants; t++) {
    if (a.tenants[t].weight.load(kRelaxed)) want |= kCounted | kShared;
    if (a.tenants[t].quota.load(kRelaxed)) want |= kCounted;
  }
  return want;
}

}  // namespace

int check_fits(Arena& a, const FillSpec& spec, std::uint32_t n) {
  const std::uint64_t quota = limits(a) ? a.tenants[spec.tenant].quota.load(kRelaxed) : 0;
  if (!quota || n <= quota) return 0;
  return refuse(a,
                fail(-KVSHM_ETOOLARGE,
                     "%u blocks wanted, and the quota of tenant %u in arena %s is %llu: it never "
                     "fits; ask for less, or raise it (kvshm quota)",
                     n, spec.tenant, a.name.c_str(), (unsigned long long)quota),
                KVSHM_REFUSED_SIZE);
}

int charge(Arena& a, const FillSpec& spec, std::uint32_t n, std::uint32_t* own) {
  *own = 0;
  see(a, spec.tenant);
  if (spec.priority == kPinnedPriority && !pin(a, n)) return over_pin_budget(a);
  if (!limits(a)) return 0;
  Tenant& t = a.tenants[spec.tenant];
  KVSHM_STEP("tenant.charge");
  const std::uint64_t used = sane(a, t.used.fetch_add(n, kRelaxed)) + n;
  const std::uint64_t quota = t.quota.load(kRelaxed);
  if (quota && used > quota) *own = std::uint32_t(std::min<std::uint64_t>(used - quota, n));
  return 0;
}

void uncharge(Arena& a, const FillSpec& spec, std::uint32_t n) {
  if (!n) return;
  KVSHM_STEP("tenant.uncharge");
  if (spec.priority == kPinnedPriority) unpin(a, n);
  if (limits(a)) a.tenants[spec.tenant].used.fetch_sub(n, kRelaxed);
}

int over_tenant_quota(Arena& a, std::uint32_t tenant) {
  return fail(-KVSHM_EQUOTA,
              "tenant %u of arena %s has its quota of %llu blocks, and too many of them are held, "
              "being filled or pinned to make room: give some back, or raise it (kvshm quota)",
              tenant, a.name.c_str(), (unsigned long long)a.tenants[tenant].quota.load(kRelaxed));
}

bool pin(Arena& a, std::uint32_t n) {
  for (int attempt = 0;; attempt++) {
    const std::uint64_t budget = a.sb->pin_budget.load(kRelaxed);
    KVSHM_STEP("pin.charge");
    const std::uint64_t before = a.sb->pinned.fetch_add(n, kRelaxed);
    if (!budget || sane(a, before) + n <= budget - 1) return true;
    a.sb->pinned.fetch_sub(n, kRelaxed);
    if (attempt || !recount(a, recount_pause_ms(a))) return false;
  }
}

void unpin(Arena& a, std::uint32_t n) { a.sb->pinned.fetch_sub(n, kRelaxed); }

int over_pin_budget(Arena& a) {
  const std::uint64_t budget = a.sb->pin_budget.load(kRelaxed);
  return refuse(a,
                fail(-KVSHM_EPINNED,
                     "%llu blocks of arena %s are pinned (priority 100), and %llu may be: unpin "
                     "some (kvshm unpin), or raise the budget (kvshm quota --pins)",
                     (unsigned long long)sane(a, a.sb->pinned.load(kRelaxed)), a.name.c_str(),
                     (unsigned long long)(budget ? budget - 1 : 0)),
                KVSHM_REFUSED_PINNED);
}

std::uint32_t recount_pause_ms(const Arena& a) { return 100 + a.nblocks / 1000; }

bool recount(Arena& a, std::uint32_t at_most_every_ms) {
  const auto now = std::uint64_t(boottime_ms());
  std::uint64_t last = a.sb->recounted_at.load(kRelaxed);
  // A last time in the future: damage, or another clock.
  if (at_most_every_ms && last <= now && now - last < at_most_every_ms) return false;
  if (!a.sb->recounted_at.compare_exchange_strong(last, now, kRelaxed) && at_most_every_ms)
    return false;  // somebody else does it
  for (int i = 0; i < 4 && !count_words(a); i++) {
  }
  return true;
}

Over over_share(const Arena& a) {
  Over over;
  const bool shared = limits(a) & kShared;
  const std::uint64_t sum = shared ? weights(a) : 0;
  each_seen(a, [&](unsigned t) {
    const std::uint64_t used = used_of(a, t), quota = a.tenants[t].quota.load(kRelaxed);
    if (!(quota && used > quota) && !(shared && used > share_among(a, t, sum))) return;
    over.bits[t / 64] |= std::uint64_t{1} << (t % 64);
    over.any = true;
  });
  return over;
}

std::uint64_t share_of(const Arena& a, std::uint32_t tenant) {
  return limits(a) & kShared ? share_among(a, tenant, weights(a)) : 0;
}

void refresh_limits(Arena& a) {
  const std::uint32_t want = wanted(a);
  if ((limits(a) & want) == want) return;
  KVSHM_STEP("tenant.limits");
  // Nobody has counted so far.
  if (!a.sb->limits.fetch_or(want, std::memory_order_seq_cst)) recount(a, 0);
}

int set_tenant(Arena& a, std::uint32_t tenant, std::uint64_t quota, std::uint32_t weight) {
  see(a, tenant);
  KVSHM_STEP("tenant.quota");
  a.tenants[tenant].quota.store(quota, kRelaxed);
  KVSHM_STEP("tenant.weight");
  a.tenants[tenant].weight.store(weight, kRelaxed);
  // Bits that no row asks for go; what a rival asked for meanwhile is set once more, by it or here.
  a.sb->limits.fetch_and(wanted(a), std::memory_order_seq_cst);
  refresh_limits(a);
  return 0;
}

}  // namespace kvshm
