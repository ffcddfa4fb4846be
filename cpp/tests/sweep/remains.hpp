// SPDX-License-Identifier: Apache-2.0
// What dead processes have left behind, one of each kind.
#pragma once
#include "scene.hpp"

namespace kvshm_sweep {

// Holds, a duplicate, fills, a membership and a half-evicted block; a hint of the free map lost.
// With a joiner: also a fill with a tentative entry that the joiner is a member of.
void leave_remains(Scene& s, kvshm_arena* joiner);

}  // namespace kvshm_sweep
