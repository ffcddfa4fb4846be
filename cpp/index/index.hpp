// The index of a pool: where a key may lie. A guess that costs a miss when it is stale; the word
// and the key in the descriptor decide.
//
// Buckets of eight 64-bit entries, one cache line, two candidate buckets a key, load <= 0.5.
//
//   63 62        32 31        0
//   [t][ tag: 31  ][ id + 1   ]     t: tentative; 0 = empty
//
// No chains, moves, tombstones, resize or locks.
//
// Invariants
//   X1  an entry is made only when the key in its block's descriptor is complete, and erased
//       before that key is zeroed
//   X2  no two committed entries of READY blocks have one key: two-phase insert
//   X3  a tentative entry is cleared by its owner, by an inserter of the same key with a lower
//       rank, or by who reaps the owner; a committed one by the one holder of an EVICTING block,
//       or by who holds the life byte of its dead sole owner
#pragma once
#include <cstdint>

#include "arena/arena.hpp"
#include "blocks/counts.hpp"

namespace kvshm {

struct Spot {  // the two buckets of a key and its tag
  std::uint64_t b1, b2, tag;
};
inline std::uint64_t bucket_of(std::uint64_t half, std::uint64_t buckets) {
  return std::uint64_t(static_cast<unsigned __int128>(half) * buckets >> 64);
}
inline std::uint32_t tag_of(Key k) { return std::uint32_t(k.lo) & 0x7fffffff; }
inline Spot spot_of(Key k, std::uint64_t buckets) {
  return {bucket_of(k.lo, buckets), bucket_of(k.hi, buckets), tag_of(k)};
}

namespace entry {
inline constexpr std::uint64_t kTentative = std::uint64_t{1} << 63;
inline std::uint64_t make(std::uint64_t tag, std::uint32_t id) { return tag << 32 | (id + 1u); }
inline std::uint64_t tag(std::uint64_t e) { return (e >> 32) & 0x7fffffff; }
inline std::uint32_t id(std::uint64_t e) { return std::uint32_t(e) - 1; }
}  // namespace entry

struct Found {
  Take how = Take::kMiss;
  std::uint32_t id = kNone;
  std::uint64_t seq = 0;  // of a pending fill
};

// Acquire, then compare the whole key. kHeld: one hold on a primary. kPending: id, seq. swap: as
// for take_ready.
Found lookup(Arena& a, Key key, bool touch, bool swap = false);
// The same, trying `guess` (from prefetch_block) before the buckets.
Found lookup_at(Arena& a, Key key, bool touch, std::uint32_t guess);
// Guess without holding: bit 0 READY, bit 1 FILLING.
unsigned peek(Arena& a, Key key);
void prefetch_buckets(Arena& a, Key key);
// Buckets are near: fetches the block of the first entry with the key's tag, and names it.
std::uint32_t prefetch_block(Arena& a, Key key);

enum class Insert { kDone, kExists, kFull };
// The key of `id` is completely written. kExists: *other is a block that has (had) the key.
Insert insert_if_absent(Arena& a, std::uint32_t id, Key key, std::uint32_t* other);

// All entries with this id in the two buckets of key (X3 is the caller's).
void erase_entries(Arena& a, std::uint32_t id, Key key);
void erase_tentative(Arena& a, std::uint32_t id, Key key);

// One more use: the aged touch count, saturating at 15, so that hot blocks are not written.
void touch_frequency(Arena& a, Hot& h);
inline unsigned frequency(std::uint32_t freq_depth, std::uint32_t epoch) {
  const unsigned behind = ((epoch & 15) - (freq_depth >> 4 & 15)) & 15;
  return behind > 3 ? 0 : (freq_depth & 15) >> behind;
}
inline std::uint32_t aged_touch(std::uint32_t fd, std::uint32_t epoch) {
  const unsigned n = frequency(fd, epoch);
  return (fd & ~0xffu) | (epoch & 15) << 4 | (n < 15 ? n + 1 : 15);
}

}  // namespace kvshm
