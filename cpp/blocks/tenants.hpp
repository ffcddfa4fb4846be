// SPDX-License-Identifier: Apache-2.0
// Tenants: how many blocks each has, may have (quota), and should have while the arena is full
// (share by weight); and how many blocks are pinned, by priority 100.
//
// The counts are hints: added before blocks are claimed, taken off when a life ends, with no order
// between a count and its block's word. A kill between the two puts a count off; whoever reaps the
// dead one counts the words anew, and so does an allocation before a quota refuses it, and the
// helper now and then. An old count costs a block more or less than the quota says, never a
// refusal of what fits. relaxed everywhere: numbers that guard no other memory.
//
// Counted only where a limit is set (Superblock::limits): without one an allocation reads a line
// that it reads anyway, and nothing is written.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"
#include "blocks/alloc.hpp"
#include "blocks/deadlines.hpp"

namespace kvshm {

enum Limits : std::uint32_t {
  kCounted = 1,  // some tenant has a limit: Tenant::used is kept
  kShared = 2,   // some tenant has a weight
};

inline std::uint32_t limits(const Arena& a) { return a.sb->limits.load(std::memory_order_relaxed); }

// n blocks are more than the tenant's quota: -KVSHM_ETOOLARGE with its text and reason; else 0.
int check_fits(Arena& a, const FillSpec& spec, std::uint32_t n);
// n blocks for a tenant, and pins if they are to be that, before any is claimed: *own of them must
// replace blocks that it has. -KVSHM_EPINNED with its text and reason: nothing is counted.
int charge(Arena& a, const FillSpec& spec, std::uint32_t n, std::uint32_t* own);
// n of them were not got, or were given back by no end of a life.
void uncharge(Arena& a, const FillSpec& spec, std::uint32_t n);
// -KVSHM_EQUOTA with its text.
int over_tenant_quota(Arena& a, std::uint32_t tenant);

// n blocks more of priority 100: false if that is over the budget. unpin: they lose it, or end.
bool pin(Arena& a, std::uint32_t n);
void unpin(Arena& a, std::uint32_t n);
int over_pin_budget(Arena& a);

// The life of a block ends that is EVICTING{me}, or a dead process's.
inline void discharge(Arena& a, Hot& h) {
  if (pins(h.priority.load(std::memory_order_relaxed))) [[unlikely]] {
    KVSHM_STEP("unpin.life");
    h.priority.store(0, std::memory_order_relaxed);
    unpin(a, 1);
  }
  if (limits(a)) [[unlikely]] {
    KVSHM_STEP("tenant.discharge");
    a.tenants[h.tenant.load(std::memory_order_relaxed) % kTenants].used.fetch_sub(
        1, std::memory_order_relaxed);
  }
}

// Counts anew from the words, if somebody could be wrong about them. at_most_every_ms: 0 = now;
// else not if anybody did so within that time: false.
bool recount(Arena& a, std::uint32_t at_most_every_ms);
// A moment that is short beside what a walk over this arena costs.
std::uint32_t recount_pause_ms(const Arena& a);

// Tenants above their share or quota, for one choice of victims.
struct Over {
  std::uint64_t bits[kTenants / 64] = {};
  bool any = false;
  bool has(unsigned t) const { return bits[t % kTenants / 64] >> (t % 64) & 1; }
};
Over over_share(const Arena& a);
// In blocks, by weight among the tenants that have some; 0 = no weights.
std::uint64_t share_of(const Arena& a, std::uint32_t tenant);

int tenant_number(Arena& a, const char* name);
// Where a row asks for what Superblock::limits does not say: its writer was killed, or overtaken.
void refresh_limits(Arena& a);
int set_tenant(Arena& a, std::uint32_t tenant, std::uint64_t quota, std::uint32_t weight);

}  // namespace kvshm
