// From filled to found: parts, index entry, READY; duplicates and private blocks.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

int begin_part(Arena& a, kvshm_handle h, std::uint32_t part);
int arrive_part(Arena& a, kvshm_handle h, std::uint32_t part);
bool all_arrived(const Arena& a, std::uint32_t id);

// A member's publish of an announced fill.
int publish(Arena& a, kvshm_handle h);
// The allocator's: *out = the block that is held for the key afterwards.
int register_block(Arena& a, kvshm_handle h, Key key, int policy, kvshm_handle* out,
                   std::uint8_t* result);

// A hold of a duplicate is also one of its primary: both are given back.
class Ticks;
int release_hold(Arena& a, std::uint32_t id, Ticks& ticks);
// Give back a membership, or the hold that it became when the block was published. -KVSHM_ENOTMINE.
int leave_fill(Arena& a, kvshm_handle h, Ticks& ticks);
// Weak to strong, both for a duplicate. 0, -ENOENT, -KVSHM_EPENDING.
int upgrade(Arena& a, kvshm_handle h, bool touch);

}  // namespace kvshm
