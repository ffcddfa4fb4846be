#include <errno.h>

#include <algorithm>
#include <cstring>

#include "blocks/tenants.hpp"
#include "capi/call.hpp"

using namespace kvshm;

namespace {

struct Counted {  // by the words
  std::uint64_t used[kTenants] = {}, pinned = 0;
  explicit Counted(const Arena& a) {
    for (std::uint32_t id = 0; id < a.nblocks; id++) {
      const Hot& h = a.hot[id];
      if (state(h.word.load(std::memory_order_relaxed)) == kFree) continue;
      used[h.tenant.load(std::memory_order_relaxed) % kTenants]++;
      pinned += pins(h.priority.load(std::memory_order_relaxed));
    }
  }
};

}  // namespace

extern "C" {

int kvshm_tenant_number(kvshm_arena* h, const char* name) {
  Call call(h);
  if (call.rc()) return call.rc();
  return tenant_number(*call, name);
}

int64_t kvshm_get_tenants(kvshm_arena* h, kvshm_tenant* out, size_t cap) {
  if (cap)
    if (int rc = check_size(out)) return rc;
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  const Arena& a = *call;
  const Counted counted(a);
  constexpr auto relaxed = std::memory_order_relaxed;
  std::size_t n = 0;
  for (std::uint32_t t = 0; t < kTenants; t++) {
    const Tenant& row = a.tenants[t];
    kvshm_tenant one{};
    one.size = sizeof one;
    one.tenant = t;
    one.weight = row.weight.load(relaxed);
    one.quota = row.quota.load(relaxed);
    one.used = counted.used[t];
    if (!row.name_hash.load(relaxed) && !one.weight && !one.quota && !one.used) continue;
    one.share = one.used ? share_of(a, t) : 0;
    for (unsigned i = 0; i < 4; i++) {
      const std::uint64_t w = row.name[i].load(relaxed);
      std::memcpy(one.name + 8 * i, &w, 8);
    }
    one.name[sizeof one.name - 1] = 0;
    if (n < cap) out[n] = one;
    n++;
  }
  return int64_t(n);
}

int kvshm_set_tenant(kvshm_arena* h, uint32_t tenant, uint64_t quota, uint32_t weight) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (tenant >= kTenants) return fail(-EINVAL, "tenant %u: wanted 0-%u", tenant, kTenants - 1);
  return set_tenant(*call, tenant, quota, weight);
}

int kvshm_set_pin_budget(kvshm_arena* h, uint64_t blocks) {
  Call call(h);
  if (call.rc()) return call.rc();
  call->sb->pin_budget.store(blocks + 1, std::memory_order_relaxed);  // KVSHM_NO_BUDGET: 0
  return 0;
}

int kvshm_get_pin_budget(kvshm_arena* h, uint64_t* budget, uint64_t* pinned) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  if (budget) *budget = call->sb->pin_budget.load(std::memory_order_relaxed) - 1;
  if (pinned) *pinned = Counted(*call).pinned;
  return 0;
}
}
