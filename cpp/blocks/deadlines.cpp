// SPDX-License-Identifier: Apache-2.0
#include "blocks/deadlines.hpp"

#include "blocks/sweep.hpp"
#include "blocks/tenants.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;  // hints: see deadlines.hpp
}

std::uint32_t settle_priority(Arena& a, std::uint32_t id, std::uint8_t byte) {
  if (!passed(a.cold[id].calms.load(kRelaxed))) return byte & ~kForAWhile;
  KVSHM_STEP("priority.settle");
  auto& p = a.hot[id].priority;
  const std::uint8_t was = byte;
  if (!p.compare_exchange_strong(byte, kNormalPriority, kRelaxed)) return kNormalPriority;
  // Renewed between the two looks, with the same byte: it stays.
  std::uint8_t normal = kNormalPriority;
  if (!passed(a.cold[id].calms.load(kRelaxed)) && p.compare_exchange_strong(normal, was, kRelaxed))
    return was & ~kForAWhile;
  if (pins(was)) unpin(a, 1);
  return kNormalPriority;
}

int set_priority(Arena& a, std::uint32_t id, std::uint32_t priority, std::uint64_t ms) {
  auto& p = a.hot[id].priority;
  const bool to = priority >= kPinnedPriority;
  std::uint8_t was = p.load(kRelaxed);
  const bool charged = to && !pins(was);
  if (charged && !pin(a, 1)) return over_pin_budget(a);
  if (ms) {
    KVSHM_STEP("priority.until");
    a.cold[id].calms.store(deadline_in(ms), kRelaxed);
  }
  KVSHM_STEP("priority.set");
  while (!p.compare_exchange_weak(was, std::uint8_t(priority | (ms ? kForAWhile : 0)), kRelaxed)) {
  }
  KVSHM_STEP("priority.was");
  const int change = int(to) - int(pins(was)) - int(charged);  // others may have set it meanwhile
  if (change) a.sb->pinned.fetch_add(std::uint64_t(std::int64_t(change)), kRelaxed);
  return 0;
}

bool evict_expired(Arena& a, std::uint32_t id, Key key) {
  Hot& h = a.hot[id];
  const std::uint64_t seq = h.seq.load(std::memory_order_acquire);
  if (!(h.load_key() == key) || !over(a, id)) return false;
  KVSHM_STEP("expired.evict");
  return evict_life(a, {seq, id, 0});
}

}  // namespace kvshm
