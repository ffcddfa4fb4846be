// Leases over holds: made, trimmed, released once; mirrored for the inspector.
#pragma once
#include "arena/arena.hpp"

namespace kvshm {

// Takes over one hold per id that is not kNone. -ENOMEM: nothing taken over.
int make_lease(Arena& a, const std::uint32_t* ids, std::uint32_t n, std::uint64_t tag,
               kvshm_lease* out);
int release_lease(Arena& a, kvshm_lease lease);                   // -EBADF
int trim_lease(Arena& a, kvshm_lease lease, std::uint32_t keep);  // -EBADF

}  // namespace kvshm
