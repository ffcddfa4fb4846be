// Flags of a held block that live in its word.
#pragma once
#include "arena/arena.hpp"

namespace kvshm {

// READY <-> READY_LAST by a holder; before publish, a wish. 0, -KVSHM_ENOTMINE.
int set_no_cache(Arena& a, kvshm_handle h, bool on);

}  // namespace kvshm
