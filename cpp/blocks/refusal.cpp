// SPDX-License-Identifier: Apache-2.0
#include "blocks/refusal.hpp"

namespace kvshm {
namespace {
thread_local constinit int last = KVSHM_REFUSED_NOT;

struct Reason {
  const char* name;
  Stat counter;
};
constexpr Reason kReasons[] = {
    {"", kStatCount},
    {"held", kStat_refused_held_total},
    {"pinned", kStat_refused_pinned_total},
    {"quota", kStat_refused_quota_total},
    {"size", kStat_refused_size_total},
    {"no_free", kStat_refused_no_free_total},
};
constexpr int kCount = int(sizeof kReasons / sizeof *kReasons);

}  // namespace

int refuse(Arena& a, int code, int reason) {
  last = reason;
  a.count(kReasons[reason].counter);
  return code;
}

void forget_refusal() { last = KVSHM_REFUSED_NOT; }

int last_refusal() { return last; }

const char* refusal_name(int reason) {
  return reason > 0 && reason < kCount ? kReasons[reason].name : "";
}

int why_short(const Arena& a, std::uint32_t n, bool evict) {
  if (!evict) return KVSHM_REFUSED_NO_FREE;
  std::uint32_t room = 0;
  for (std::uint32_t id = 0; id < a.nblocks; id++) {
    const word_t w = a.hot[id].word.load(std::memory_order_relaxed);
    room += state(w) == kFree || (state(w) == kReady && !holders(w));
  }
  // Free or held by nobody, and yet not to be had: it is pinned.
  return room >= n ? KVSHM_REFUSED_PINNED : KVSHM_REFUSED_HELD;
}

}  // namespace kvshm
