// SPDX-License-Identifier: Apache-2.0
// The measuring program of tools/bench disk: linked from the library's own objects, since the
// engines of the tier are not in its public API.
#pragma once
#include <kvshm_tier.h>

#include "../bench.hpp"

namespace bench {

int engine(const Args&);

}  // namespace bench
