// SPDX-License-Identifier: Apache-2.0
// Tenants, pins and deadlines: who dies between a count and its block leaves no count wrong once he
// is reaped, and no half of a deadline.
#include "blocks/tenants.hpp"
#include "scene.hpp"

namespace kvshm_sweep {
namespace {

using kvshm::kTenants;

int cache_as(kvshm_arena* a, std::uint32_t tenant, std::uint64_t number, std::uint32_t priority) {
  const block_key key = key_of(number);
  auto o = sized<kvshm_fill_options>();
  o.tenant = tenant;
  o.priority = priority;
  kvshm_handle h;
  if (int rc = kvshm_allocate(a, 1, raw(key), &o, &h, nullptr, nullptr)) return -rc;
  write_payload(a, h.id, key);
  if (kvshm_register(a, &h, 1, nullptr, KVSHM_ALLOW, &h, nullptr) != 1) return 1;
  return -kvshm_drop(a, &h, 1);
}

int live_within_limits(kvshm_arena* a, Scene&) {
  const int t = kvshm_tenant_number(a, "a tenant");
  if (t < 1) return 1;
  const auto tenant = std::uint32_t(t);
  if (cache_as(a, tenant, 800, 0)) return 2;
  if (kvshm_set_tenant(a, tenant, 2, 3)) return 3;
  for (std::uint64_t i = 801; i < 804; i++)  // the first fits, then its own go
    if (cache_as(a, tenant, i, 0)) return 4;
  if (present(a, key_of(800)) || present(a, key_of(801)) || !present(a, key_of(803))) return kWrong;
  if (kvshm_set_pin_budget(a, 1)) return 5;
  if (cache_as(a, 0, 810, 100)) return 6;
  if (cache_as(a, 0, 811, 100) != KVSHM_EPINNED) return 7;
  if (kvshm_evict(a, raw(key_of(810)), 1) != 1) return 8;
  handles_t h(3);
  auto o = sized<kvshm_fill_options>();
  o.tenant = tenant;
  if (kvshm_allocate(a, 3, nullptr, &o, h.data(), nullptr, nullptr) != -KVSHM_ETOOLARGE) return 9;
  return 0;
}

// Counts are what the words say; then the limits are lifted, so that they are in nobody's way.
int counts_are_right(kvshm_arena* a) {
  kvshm::Arena& core_of = core(a);
  std::uint64_t used[kTenants] = {}, pinned = 0;
  for (std::uint32_t id = 0; id < kBlocks; id++) {
    const kvshm_block_info b = block(a, id);
    if (b.state == KVSHM_FREE) continue;
    used[b.tenant]++;
    pinned += b.priority == 100;
  }
  if (core_of.sb->pinned.load() != pinned) return 1;
  for (unsigned t = 0; t < kTenants; t++) {
    if (kvshm::limits(core_of) && core_of.tenants[t].used.load() != used[t]) return 2;
    if (core_of.tenants[t].quota.load() && kvshm_set_tenant(a, t, 0, 0)) return 3;
  }
  return -kvshm_set_pin_budget(a, KVSHM_NO_BUDGET);
}

// Blocks with deadlines that have passed: one goes for its key, one as a victim.
int outlive_deadlines(kvshm_arena* a, Scene& s) {
  auto o = sized<kvshm_fill_options>();
  o.ttl_ms = o.priority_ms = 1000;
  o.priority = 90;
  const keys_t keys = keys_of(820, 2);
  handles_t h(2);
  if (kvshm_allocate(a, 2, raw(keys), &o, h.data(), nullptr, nullptr)) return 1;
  for (int i = 0; i < 2; i++) write_payload(a, h[i].id, keys[i]);
  if (kvshm_register(a, h.data(), 2, nullptr, KVSHM_ALLOW, h.data(), nullptr) != 2) return 2;
  if (kvshm_set_priority_for(a, h[1], 100, 1000)) return 3;
  kvshm::Cold* cold = core(a).cold;
  for (const kvshm_handle& one : h) {
    cold[one.id].expires.fetch_sub(20);
    cold[one.id].calms.fetch_sub(20);
  }
  if (kvshm_drop(a, h.data(), 2)) return 4;
  if (present(a, keys[0])) return kWrong + 1;
  if (int rc = put(a, keys[0], KVSHM_REJECT)) return rc;
  if (!present(a, keys[0])) return kWrong + 2;
  kvshm_handle held;
  if (kvshm_acquire(a, s.cached[1].data(), 0, &held)) return 5;
  if (kvshm_set_priority_for(a, held, 70, 1000)) return 6;
  cold[held.id].calms.fetch_sub(20);
  if (kvshm_drop(a, &held, 1)) return 7;
  handles_t room(9);
  std::uint32_t got = 0;
  while (got < 9 && !kvshm_allocate(a, 1, nullptr, nullptr, &room[got], nullptr, nullptr)) got++;
  return -kvshm_abort(a, room.data(), got);
}

}  // namespace

std::vector<Op> tenant_ops() {
  return {
      {.name = "limits", .act = live_within_limits, .after = counts_are_right, .alone = true},
      {.name = "deadlines",
       .act = outlive_deadlines,
       .after = counts_are_right,
       .may_go = 0xf,
       .goes = 0xf,
       .alone = true},
  };
}

}  // namespace kvshm_sweep
