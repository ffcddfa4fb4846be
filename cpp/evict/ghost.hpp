// SPDX-License-Identifier: Apache-2.0
// The memory of keys that left: what `kvshm explain` says of a key that is no longer here.
//
// Hints, nothing else. Sets of four places, a cache line each; the key says which set. Processes write
// them without any order between them and without asking whether they are sound: a pair torn by a
// race, a kill or damage costs a wrong answer of explain, or a key forgotten too early.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

enum class Gone : std::uint8_t { kEvicted = 1, kRemoved = 2, kClosed = 3 };

// Ghost.gone: [ seconds since the arena was made: 32 | 0: 26 | uses: 4 | Gone: 2 ]; 0 = empty
namespace ghost {
inline constexpr std::uint64_t make(Gone why, unsigned uses, std::uint32_t when) {
  return std::uint64_t{when} << 32 | (uses & 15) << 2 | unsigned(why);
}
inline constexpr unsigned why(std::uint64_t w) { return w & 3; }
inline constexpr unsigned uses(std::uint64_t w) { return w >> 2 & 15; }
inline constexpr std::uint32_t when(std::uint64_t w) { return std::uint32_t(w >> 32); }

struct Spot {
  std::uint64_t tag;
  Ghost* places;  // n of them
  unsigned n;
};
Spot spot_of(const Arena& a, Key key);
}  // namespace ghost

// Seconds since the arena was made, by the coarse clock: read once per call, not per block.
std::uint32_t arena_seconds(const Arena& a);
// The key of a block that is EVICTING{me} and was READY, before its life ends. Keyless ones,
// duplicates and private ones leave nothing: nobody could find them.
void keep_ghost(Arena& a, std::uint32_t id, Gone why, std::uint32_t now);
// Fetches the line that keep_ghost will write.
void prefetch_ghost(const Arena& a, std::uint32_t id);

}  // namespace kvshm
