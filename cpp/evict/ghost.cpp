// SPDX-License-Identifier: Apache-2.0
#include "evict/ghost.hpp"

#include <time.h>

#include "evict/uses.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;  // hints: see ghost.hpp
constexpr unsigned kWays = 64 / sizeof(Ghost);
}  // namespace

namespace ghost {

Spot spot_of(const Arena& a, Key key) {
  // Mixed, since a raw arena's keys may be counted numbers.
  const std::uint64_t mixed = key.lo * 0x9e3779b97f4a7c15;
  const std::uint64_t sets = ghost_places(a.nblocks) / kWays;
  return {key.hi ^ mixed, a.ghosts + bucket_of(mixed, sets) * kWays, kWays};
}

}  // namespace ghost

std::uint32_t arena_seconds(const Arena& a) {
  timespec t{};
  clock_gettime(CLOCK_REALTIME_COARSE, &t);  // vDSO: no system call
  const auto now = std::uint64_t(t.tv_sec);
  return now > a.sb->created_at ? std::uint32_t(now - a.sb->created_at) : 0;
}

void keep_ghost(Arena& a, std::uint32_t id, Gone why, std::uint32_t now) {
  const Hot& h = a.hot[id];
  const Key key = h.load_key();
  if (key.none() || h.flags.load(kRelaxed) & (kDuplicate | kPrivate)) return;
  const ghost::Spot s = ghost::spot_of(a, key);
  // The same key, else an empty place, else the oldest; of equally old ones not always the same.
  Ghost* to = nullptr;
  std::uint64_t oldest = 0;
  for (unsigned i = 0; i < s.n; i++) {
    Ghost& g = s.places[(s.tag + i) % s.n];
    const std::uint64_t gone = g.gone.load(kRelaxed);
    if (ghost::why(gone) && g.tag.load(kRelaxed) == s.tag) {
      to = &g;
      break;
    }
    // Modulo 2^32: what is said to come from the future (damage, a clock set back) goes early.
    const std::uint64_t age =
        ghost::why(gone) ? std::uint32_t(now - ghost::when(gone)) + 1ull : ~std::uint64_t{0};
    if (age > oldest) to = &g, oldest = age;
  }
  const unsigned uses = frequency(h.freq_depth.load(kRelaxed), a.sb->age_epoch.load(kRelaxed));
  // Only what was evicted: what somebody removed or closed is not wanted back.
  // Of queues only the small one's: the main one has had its chance.
  const std::uint32_t policy = a.sb->policy.flags.load(kRelaxed);
  if (why == Gone::kEvicted && policy & KVSHM_POLICY_MEMORY &&
      !(policy & KVSHM_POLICY_QUEUES && h.flags.load(kRelaxed) & kMain))
    remember(a, key, uses + 1);
  KVSHM_STEP("ghost.tag");
  to->tag.store(s.tag, kRelaxed);
  KVSHM_STEP("ghost.half");
  to->gone.store(ghost::make(why, uses, now), kRelaxed);
}

void prefetch_ghost(const Arena& a, std::uint32_t id) {
  const Key key = a.hot[id].load_key();
  __builtin_prefetch(ghost::spot_of(a, key).places, 1);
  if (a.sb->policy.flags.load(kRelaxed) & KVSHM_POLICY_MEMORY) prefetch_uses(a, key);
}

}  // namespace kvshm
