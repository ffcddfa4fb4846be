// SPDX-License-Identifier: Apache-2.0
#include "evict/touches.hpp"

namespace kvshm {

std::uint32_t take_touches(Arena& a, std::uint64_t* out, std::uint32_t n) {
  constexpr auto kRelaxed = std::memory_order_relaxed;  // see touches.hpp
  ShadowHeader& s = *a.shadow;
  std::uint32_t got = 0;
  std::uint64_t lost = 0;
  for (unsigned slot = 0; slot < kSlots && got < n; slot++) {
    const SlotRecord& r = a.slots[slot];
    const std::uint64_t head = r.stats[kStat_touch_records_total].load(kRelaxed);
    std::uint64_t at = s.cursors[slot].load(kRelaxed);
    if (head == at) continue;
    // Behind by more than the ring, or ahead (damage): only what is left in it.
    if (head - at > kTouchRing) {
      const std::uint64_t first = head > kTouchRing ? head - kTouchRing : 0;
      if (first > at) lost += first - at;
      at = first;
    }
    for (; at != head && got < n; at++) {
      const std::uint64_t w = r.touches[at % kTouchRing].load(kRelaxed);
      if ((w & 0xfff) != ((at / kTouchRing + 1) & 0xfff))
        lost++;
      else
        out[got++] = (w & ~std::uint64_t{0xffff}) | (w >> 12 & 15);
    }
    s.cursors[slot].store(at, kRelaxed);
  }
  s.lost.store(s.lost.load(kRelaxed) + lost, kRelaxed);
  s.records.store(s.records.load(kRelaxed) + got, kRelaxed);
  return got;
}

}  // namespace kvshm
