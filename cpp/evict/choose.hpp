// SPDX-License-Identifier: Apache-2.0
// The best-scored of a sample of inactive blocks: where the walk to a leaf begins.
//
// Candidates come along a hand that moves in steps of about 0.618 N, coprime to N: never
// consecutive blocks, which belong to one request (Knuth, TAOCP 3, 6.4: Fibonacci hashing, for why
// the golden ratio spreads). Where at most 64 blocks are evictable all of them are looked at.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"
#include "blocks/tenants.hpp"

namespace kvshm {

// The scorer's parameters, copied once per allocation.
struct Policy {
  std::uint32_t sample, age_period;
  std::uint32_t flags, young_share;  // as in the table
  std::uint32_t young;               // ticks; 0: no admission
  std::uint32_t small;               // share of the small queue in 1/1024
  bool second_chance, leaf_queue, queues;
  std::uint8_t rank[16], shift[16];
  Over over;  // tenants that lose blocks first
};
Policy read_policy(const Arena& a);

// reluctance: [ within its share where others are above theirs: 1 | priority: 8 | rank: 8 ]
inline constexpr std::uint32_t kWithinShare = 1 << 16, kPriorityShift = 8;
inline constexpr std::uint32_t kOverAge = ~std::uint32_t{0};  // its time to live has passed
struct Score {                                                // greater goes first
  std::uint32_t reluctance, age;
  bool worse_than(const Score& o) const {
    return reluctance != o.reluctance ? reluctance < o.reluctance : age > o.age;
  }
};
// Of a stamp in ticks; one given after `now` was read is none.
inline std::uint32_t age_of(std::uint32_t now, std::uint32_t stamp) {
  const std::uint32_t age = now - stamp;
  return age < 0xff000000u ? age : 0;
}
// now: the arena's tick.
Score score(Arena& a, const Policy& p, std::uint32_t id, std::uint32_t now);

word_t look(const Hot& h);
// READY{} and not pinned, by a look.
bool evictable(Arena& a, std::uint32_t id);
// All that are evictable, where a look at the whole arena found so few: the next victims of the
// same claim are chosen of them, not by another look at everything.
struct Few {
  static constexpr std::uint32_t kRoom = 64;
  std::uint32_t ids[kRoom], n = 0;
};
// kNone: nothing is evictable.
std::uint32_t candidate(Arena& a, const Policy& p, Few& few);
std::uint32_t hand_step(std::uint32_t n);  // about 0.618 n, coprime to it

// This process's hand over the blocks, under the evictor's mutex. A walk is as many cache misses as
// steps: some of them are kept in flight.
class Hand {
 public:
  explicit Hand(Arena& a);
  std::uint32_t next();  // a block

 private:
  void advance(std::uint64_t* at) const {
    *at = *at + step_ >= n_ ? *at + step_ - n_ : *at + step_;
  }
  const Hot* hot_;
  std::uint64_t& at_;
  std::uint64_t ahead_;
  std::uint32_t n_, step_;
};

}  // namespace kvshm
