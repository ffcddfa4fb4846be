// The way to FREE, and the waking of those who wait for it.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

// The word is EVICTING with exactly one bit, which is mine or that of a dead process whose life
// byte I hold. Erases the entries, zeroes the key, seq + 1, then FREE, free-map bit, wake.
void close_block(Arena& a, std::uint32_t id, bool counted = true);
// The same up to, not including, the last store: the block stays EVICTING, ready for a new life.
// counted: for its tenant; a claim of free blocks that is undone was charged as a whole.
void end_life(Arena& a, std::uint32_t id, bool counted = true);
// The free map's bit and its summary: hints that the block may be claimed.
void mark_free(Arena& a, std::uint32_t id);
// Sets the region's summary bit if its map has any: who died between the two left it missing.
void summarize(Arena& a, std::uint32_t region);

void wake_fill(Arena& a, std::uint32_t id);  // READY, left or closed: look again
void wake_space(Arena& a);                   // a block is free or evictable

}  // namespace kvshm
