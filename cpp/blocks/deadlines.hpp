// SPDX-License-Identifier: Apache-2.0
// What a block is for a while only: findable (time to live), and of a priority of its own.
//
// Deadlines stand in the cold line, in tenths of a second of CLOCK_MONOTONIC modulo 2^32; a bit in
// the hot line says that there is one, so that nobody reads the cold line of a block without. They
// are hints: an old value costs a miss, or a poorer victim. Nothing acts at a deadline: look-ups
// and the evictor compare. Who holds a block whose time is over keeps it.
#pragma once
#include <time.h>

#include "arena/arena.hpp"

namespace kvshm {

inline constexpr std::uint8_t kForAWhile = 128;  // in Hot.priority: Cold.calms says until when
inline constexpr std::uint8_t kNormalPriority = 50, kPinnedPriority = 100;

inline std::uint32_t tenths() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);  // vDSO: no system call
  return std::uint32_t(std::uint64_t(t.tv_sec) * 10 + std::uint64_t(t.tv_nsec) / 100000000);
}
inline constexpr std::uint64_t kLongest = (std::uint64_t{1} << 31) - 1;  // 6.8 years
inline std::uint32_t deadline_in(std::uint64_t ms) {
  const std::uint64_t t = ms / 100 + (ms % 100 != 0);
  const std::uint32_t at = tenths() + std::uint32_t(t < kLongest ? t : kLongest);
  return at ? at : 1;  // 0 is where nothing was written
}
inline bool passed(std::uint32_t deadline) { return std::int32_t(tenths() - deadline) >= 0; }

// Its time to live is over: a miss for all who do not hold it.
inline bool expired(const Arena& a, std::uint32_t id) {
  return (a.hot[id].flags.load(std::memory_order_relaxed) & kMortal) &&
         passed(a.cold[id].expires.load(std::memory_order_relaxed));
}

// The same of a block that is READY: a look-up passes over it.
inline bool over(const Arena& a, std::uint32_t id) {
  return expired(a, id) && is_ready(a.hot[id].word.load(std::memory_order_acquire));
}

// A priority byte of a block that nobody holds, as it counts now; a passed one is set back.
std::uint32_t settle_priority(Arena& a, std::uint32_t id, std::uint8_t byte);
inline std::uint32_t priority_now(Arena& a, std::uint32_t id) {
  const std::uint8_t byte = a.hot[id].priority.load(std::memory_order_relaxed);
  if (!(byte & kForAWhile)) [[likely]]
    return byte;
  return settle_priority(a, id, byte);
}
inline bool pins(std::uint8_t byte) { return (byte & ~kForAWhile) >= kPinnedPriority; }

// Never a victim: of priority 100, unless its life is over anyway.
inline bool pinned(Arena& a, std::uint32_t id) {
  if (!pins(a.hot[id].priority.load(std::memory_order_relaxed))) [[likely]]
    return false;
  return priority_now(a, id) >= kPinnedPriority && !expired(a, id);
}

// Of a block that this process holds or fills; ms: 0 = for good. 0, or -KVSHM_EPINNED: nothing
// changed.
int set_priority(Arena& a, std::uint32_t id, std::uint32_t priority, std::uint64_t ms);

// A block that is looked for and not found because its time is over keeps its key from a new one:
// gone, if nobody holds it.
bool evict_expired(Arena& a, std::uint32_t id, Key key);

}  // namespace kvshm
