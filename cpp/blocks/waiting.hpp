// Waiting for a fill: an eventcount per block, never without a limit.
#pragma once
#include "arena/arena.hpp"

namespace kvshm {

// 0: READY; -ENOENT: over without it; -ETIMEDOUT; -KVSHM_ECANCELED. Between slices the holders are
// probed and the dead reaped, so that a dead filler costs one slice.
int wait_fill(Arena& a, kvshm_handle h, std::uint32_t timeout_ms);
// On: all waits of this process end now, and later ones do not begin. Off: as ever.
void cancel_waits(Arena& a, bool on);

}  // namespace kvshm
