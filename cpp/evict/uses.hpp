// SPDX-License-Identifier: Apache-2.0
// How often keys that left were used, so that a block which comes back is worth what it was.
//
// 12 bytes a block in lines of 64 bytes, in one of two forms that the policy table names:
//
//   tagged table (default)   line: [ epoch: 64 | 28 places of [ tag: 12 | uses: 4 ] ]
//   sketch (count-min)       word: [ epoch: 4 | 15 counters of 4 bits ], 8 bytes a block of them
//
// The table's line is the key's; of a full one the least used place goes. The sketch has four
// counters for a key, each with word and counter from independent bits; a count is the least of the
// four, and only those below a new count are raised (Estan, Varghese: conservative update). Both
// halve by epochs, lazily: at the next write, and in what is read. Everything here is a hint:
// accesses are relaxed, an update overtaken by another's is lost, and a false tag (28 / 4096 at
// most) or damage costs a wrong number of uses.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

// Uses of a key that is not here any more, as they count now: 0-15.
unsigned recall(const Arena& a, Key key);
// A key leaves that was used so often.
void remember(Arena& a, Key key, unsigned uses);
void forget_uses(Arena& a);  // all of them
void prefetch_uses(const Arena& a, Key key);
// Counts halve every age_period uses per block of the arena: moves age_epoch when it is time.
// Called by allocations; uses are told by the ticks.
void age(Arena& a);

}  // namespace kvshm
