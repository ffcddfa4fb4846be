// SPDX-License-Identifier: Apache-2.0
// Two READY primaries of one key, at work and at rest.
#pragma once
#include <kvshm.h>

#include "shared.hpp"

namespace torture {

// Looks at up to `most` blocks from `first` on against all others. On a live arena, too: what is
// reported was so at one moment.
void find_two_primaries(Shared& s, const kvshm_block_record* table, std::uint64_t blocks,
                        std::uint64_t first, std::uint64_t most);

}  // namespace torture
