// Which block goes: victims marked beforehand, then leaves kept from the last eviction, then the
// best-scored of a sample of inactive blocks, walked from there to a cached leaf.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

// Up to n victims, each EVICTING{me} with its entries untouched. Returns how many; *exhausted: a
// whole round found nothing evictable any more (else rivals took what the policy chose).
std::uint32_t claim_victims(Arena& a, std::uint32_t n, std::uint32_t* ids, bool* exhausted);
// READY{} with a priority below 100 -> EVICTING{me}; any: whatever its priority.
bool claim_evictable(Arena& a, std::uint32_t id, bool any_priority = false);
// EVICTING{me}, entries untouched -> READY{}: the allocation fell short.
void give_back_victim(Arena& a, std::uint32_t id);

void default_policy(PolicyTable& t, std::uint64_t blocks);

// Victim marks: a ring in the arena, lossy.
std::uint32_t push_marks(Arena& a, const kvshm_handle* h, std::uint32_t n);
// True: a block of this arena, in that life, and not used since it was marked.
bool pop_mark(Arena& a, std::uint32_t* id, std::uint64_t* seq);
std::uint64_t marks_left(const Arena& a);

}  // namespace kvshm
