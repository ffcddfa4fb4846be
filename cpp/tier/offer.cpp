#include "tier/offer.hpp"

#include "blocks/deadlines.hpp"
#include "tier/mover.hpp"

namespace kvshm::tier {
namespace {
unsigned lane_of(Arena& a, std::uint32_t rule, std::uint32_t id, bool asked) {
  if (asked || priority_now(a, id) > kNormalPriority) return kAsked;
  const bool gather = rule == KVSHM_TIER_WRITE_LAZY || rule == KVSHM_TIER_WRITE_IDLE;
  return gather ? unsigned{kLater} : unsigned{kUsual};
}
}  // namespace

std::uint32_t rule(const Arena& a, const Tier* t) {
  if (t) return t->options.write;
  const std::uint32_t told = a.queues->mover.rule.load(std::memory_order_relaxed);
  if (!told || told > KVSHM_TIER_WRITE_IDLE + 1) return KVSHM_TIER_WRITE_OFF;
  return told - 1;
}

std::uint32_t offer(Arena& a, Tier* t, const kvshm_handle* h, std::uint32_t n, bool asked) {
  const std::uint32_t how = rule(a, t), most = (t ? t->options : Options()).queue;
  std::uint32_t taken = 0;
  for (std::uint32_t i = 0; i < n; i++) {
    const unsigned lane = lane_of(a, how, h[i].id, asked);
    std::uint64_t ticket;
    if (!push(a, lane, h[i].seq, h[i].id, most, &ticket)) continue;
    taken++;
    if (t) t->remember(lane, ticket);
  }
  a.count(kStat_tier_offered_total, n);
  a.count(kStat_tier_dropped_total, n - taken);
  if (taken && t) t->mover->wake_for_stores();
  return taken;
}

std::uint32_t prefetch(Arena& a, const kvshm_key* keys, std::uint32_t n) {
  std::uint32_t taken = 0;
  for (; taken < n; taken++) {
    const Key k = Key::load(keys[taken]);
    if (!push(a, kFetch, k.lo, k.hi, kLaneRoom, nullptr)) break;
  }
  return taken;
}

}  // namespace kvshm::tier
