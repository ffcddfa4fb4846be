// Which block goes: victims marked beforehand, then leaves kept from the last eviction, then the
// best-scored of a sample of inactive blocks, walked from there to a cached leaf.
//
// Candidates come along a hand that moves in steps of about 0.618 N, coprime to N: never
// consecutive blocks, which belong to one request (Knuth, TAOCP 3, 6.4: Fibonacci hashing, for why
// the golden ratio spreads). Where at most 64 blocks are evictable all of them are looked at.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"
#include "blocks/tenants.hpp"

namespace kvshm {

// Up to n victims, each EVICTING{me} with its entries untouched. Returns how many; *exhausted: a
// whole round found nothing evictable any more (else rivals took what the policy chose).
std::uint32_t claim_victims(Arena& a, std::uint32_t n, std::uint32_t* ids, bool* exhausted);
// READY{} with a priority below 100 -> EVICTING{me}; any: whatever its priority.
bool claim_evictable(Arena& a, std::uint32_t id, bool any_priority = false);
// EVICTING{me}, entries untouched -> READY{}: the allocation fell short.
void give_back_victim(Arena& a, std::uint32_t id);

// READY{} and not pinned, by a look.
bool evictable(Arena& a, std::uint32_t id);

// The scorer's parameters, copied once per allocation.
struct Policy {
  std::uint32_t sample, second_chance, age_period;
  std::uint8_t shift[16];
  Over over;  // tenants that lose blocks first
};
Policy read_policy(const Arena& a);
inline constexpr std::uint32_t kWithinShare = 256;
inline constexpr std::uint32_t kOverAge = ~std::uint32_t{0};  // its time to live has passed
struct Score {                                                // greater goes first
  std::uint32_t reluctance;  // its priority; kWithinShare more where others are above theirs
  std::uint32_t age;
  bool worse_than(const Score& o) const {
    return reluctance != o.reluctance ? reluctance < o.reluctance : age > o.age;
  }
};
// now: the arena's tick.
Score score(Arena& a, const Policy& p, std::uint32_t id, std::uint32_t now);
void default_policy(PolicyTable& t);
std::uint32_t hand_step(std::uint32_t n);  // about 0.618 n, coprime to it

// Victim marks: a ring in the arena, lossy.
std::uint32_t push_marks(Arena& a, const kvshm_handle* h, std::uint32_t n);
bool pop_mark(Arena& a, std::uint32_t* id, std::uint64_t* seq);
std::uint64_t marks_left(const Arena& a);

}  // namespace kvshm
