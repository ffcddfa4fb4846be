// Which blocks are offered to the disk, when, and in which lane. Any process of the arena offers: one
// without a tier of its own by the rule of who moves.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"
#include "tier/queues.hpp"

namespace kvshm::tier {

struct Tier;

// KVSHM_TIER_WRITE_... of this process's tier, else of the arena's mover; OFF where there was none.
std::uint32_t rule(const Arena& a, const Tier* t);
// READY blocks, weakly, head first; how many were queued. t may be null. asked: before what goes by
// itself. Any thread.
std::uint32_t offer(Arena& a, Tier* t, const kvshm_handle* h, std::uint32_t n, bool asked);
std::uint32_t prefetch(Arena& a, const kvshm_key* keys, std::uint32_t n);

}  // namespace kvshm::tier
