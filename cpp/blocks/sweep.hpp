// Evicting on request, counting, and checking everything.
#pragma once
#include "arena/arena.hpp"

namespace kvshm {

std::uint64_t evict_all(Arena& a);          // every inactive block, whatever its priority
bool evict_key(Arena& a, Key key);          // false: absent or held
bool evict_life(Arena& a, kvshm_handle b);  // false: over or held
void count_blocks(const Arena& a, kvshm_stats* out);
std::int64_t check_arena(Arena& a, kvshm_broken_fn fn, void* user);

}  // namespace kvshm
