// Links between the blocks of a chain: hints for the walk to a cached leaf.
//
// x is a child of p iff x is READY, parent[x] == p and parent_check[x] is the low half of key[p].
// child[p] heads a list over sibling[]; whoever meets a dead head repairs it. A list may lead into
// another parent's (x was reused): the check refuses those, and every walk has a limit. What a lost
// link costs: that chain is taken for a leaf, its tail may strand (<= 0.45 points of hit ratio at
// 1 % lost).
#pragma once
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

// x (mine, or held) becomes the head of p's children; p = kNone makes it a root.
void link_child(Arena& a, std::uint32_t x, std::uint32_t p);
// Match saw x follow p, both held: relink if x's parent is stale or p has no child.
void relink(Arena& a, std::uint32_t x, std::uint32_t p);
// x is EVICTING{me}: take it off the head of its parent's list.
void unlink_head(Arena& a, std::uint32_t x);
bool is_child(Arena& a, std::uint32_t x, std::uint32_t p);
// First valid child of p, or kNone; repairs the head.
std::uint32_t first_child(Arena& a, std::uint32_t p);
// From c down to a block without a cached child; gives up (kNone) after 4096 steps.
std::uint32_t walk_to_leaf(Arena& a, std::uint32_t c, std::uint64_t* steps);

}  // namespace kvshm
