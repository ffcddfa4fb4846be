// A limit that a process sets itself when it opens an arena: blocks that it holds or fills at once,
// so that a process which wedges cannot keep more than that from the others. A block counts once,
// however many holds this process has of it. Only what adds one is refused; nothing is taken away.
#pragma once
#include "arena/arena.hpp"

namespace kvshm {

// n blocks more: false and nothing counted if that is too many. Without a quota one comparison with
// a private field that is never written. relaxed: a count alone, the block words are the truth.
inline bool quota_take(Arena& a, std::uint32_t n = 1) {
  if (__builtin_expect(!a.quota, 1)) return true;
  std::uint64_t held = a.holding.load(std::memory_order_relaxed);
  while (held + n <= a.quota)
    if (a.holding.compare_exchange_weak(held, held + n, std::memory_order_relaxed)) return true;
  a.count(kStat_quota_refused_total);
  return false;
}

// One more in place of one that is about to go: counted, never refused.
inline void quota_swap(Arena& a) {
  if (a.quota) a.holding.fetch_add(1, std::memory_order_relaxed);
}

inline void quota_return(Arena& a, std::uint32_t n = 1) {
  if (__builtin_expect(a.quota, 0)) a.holding.fetch_sub(n, std::memory_order_relaxed);
}

inline int over_quota(const Arena& a) {
  return fail(-KVSHM_EQUOTA,
              "this process holds or fills %llu blocks of arena %s, and its quota is %llu: give "
              "some back, or open the arena with a larger one",
              (unsigned long long)a.holding.load(std::memory_order_relaxed), a.name.c_str(),
              (unsigned long long)a.quota);
}

}  // namespace kvshm
