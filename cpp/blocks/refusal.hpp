// Why an allocation, or a pin, was refused: counted by reason, and remembered for the thread.
#pragma once
#include "arena/arena.hpp"

namespace kvshm {

// Counts it, and remembers it for last_refusal(). Returns code.
int refuse(Arena& a, int code, int reason);
// An allocation begins.
void forget_refusal();
// Of this thread: a KVSHM_REFUSED_...
int last_refusal();
const char* refusal_name(int reason);
// n blocks were to be had by nobody's leave: a KVSHM_REFUSED_... by a look at all words. evict: the
// allocation was allowed to.
int why_short(const Arena& a, std::uint32_t n, bool evict);

}  // namespace kvshm
