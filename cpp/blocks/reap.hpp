// What a dead process held, given back on its behalf.
#pragma once
#include "arena/slots.hpp"

namespace kvshm {

// Under the life byte of `slot`. Adds to *counts; clean = false if a FILLING block must wait for
// the device byte.
void reap_block(Arena& a, std::uint32_t id, unsigned slot, bool device_free, ReapCounts* counts);

}  // namespace kvshm
