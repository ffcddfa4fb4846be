// Waiting for a fill: an eventcount per block, never without a limit.
#pragma once
#include "arena/arena.hpp"

namespace kvshm {

// 0: READY; -ENOENT: over without it; -ETIMEDOUT. Between slices the holders are probed and the
// dead
// reaped, so that a dead filler costs one slice.
int wait_fill(Arena& a, kvshm_handle h, std::uint32_t timeout_ms);

}  // namespace kvshm
