// Checking what a caller asks of an allocation.
#pragma once
#include "arena/arena.hpp"
#include "blocks/alloc.hpp"

namespace kvshm {

// n blocks under options o (may be nullptr) into *s; -EINVAL with a text.
int read_fill_options(Arena& a, std::uint32_t n, const kvshm_fill_options* o, FillSpec* s);

}  // namespace kvshm
