// What goes down by itself: see tier/offer.hpp. All but a load where no tier is.
#pragma once
#include <cstdint>

#include "kvshm.h"

namespace kvshm {

// Became READY; head first.
void offer_to_tier(kvshm_arena* h, const kvshm_handle* b, std::uint32_t n);
// Was given back, head first: goes down where this process's rule says that this is the time.
bool offers_at_release(const kvshm_arena* h);
void offer_released(kvshm_arena* h, const kvshm_handle* b, std::uint32_t n);

}  // namespace kvshm
