// SPDX-License-Identifier: Apache-2.0
// What the controller of the adaptive policy learns from: uses of a share of all keys, chosen by
// their hash so that each of them is seen at every use or never (Waldspurger et al., FAST'15: a
// cache of 1/8 of the keys behaves as the whole one).
//
// A ring in the slot of the process that gives a block back, of 2048 records, lossy:
//
//   record  63          16 15       12 11       0
//           [ hash: 48    ][ uses: 4  ][ turn: 12 ]      turn: how often the ring went round
//
// All accesses are relaxed. A record that is read before it is written, or after it was overwritten,
// has another turn and counts as lost.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {
namespace touches {

inline std::uint64_t mixed(std::uint64_t key_lo) { return key_lo * 0x9e3779b97f4a7c15; }
// mask: of the policy table; (1 << n) - 1 for one key in 2^n, all ones for none.
inline bool sampled(std::uint64_t mixed, std::uint32_t mask) {
  return !(std::uint32_t(mixed >> 32) & mask);
}
inline constexpr std::uint64_t make(std::uint64_t mixed, unsigned uses, std::uint64_t turn) {
  return (mixed & ~std::uint64_t{0xffff}) | (uses & 15) << 12 | (turn & 0xfff);
}

// A block is given back that has this freq_depth.
inline void record(Arena& a, std::uint64_t mixed, std::uint32_t freq_depth) {
  // relaxed: threads of this process alone count here
  const std::uint64_t at =
      a.mine->stats[kStat_touch_records_total].fetch_add(1, std::memory_order_relaxed);
  a.mine->touches[at % kTouchRing].store(make(mixed, uses_of(freq_depth), at / kTouchRing + 1),
                                         std::memory_order_relaxed);
}

}  // namespace touches

// Up to n records of all processes, each [ hash: 48 | 0: 12 | uses: 4 ], oldest first in each ring;
// for who has the controller's post.
std::uint32_t take_touches(Arena& a, std::uint64_t* out, std::uint32_t n);

}  // namespace kvshm
