// SPDX-License-Identifier: Apache-2.0
// Victims among the blocks of one tenant: one whose quota is used up makes room itself.
//
// One walk along the hand keeps the best-scored of those that it sees, for this and the next
// evictions: a tenant may have few blocks in a large arena.
#pragma once
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

// As claim_victims, of this tenant alone. Fewer than n: the others are held, filling or pinned.
std::uint32_t claim_own(Arena& a, std::uint32_t tenant, std::uint32_t n, std::uint32_t* ids);

}  // namespace kvshm
