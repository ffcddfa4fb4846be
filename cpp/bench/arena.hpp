// SPDX-License-Identifier: Apache-2.0
// Arenas as the roles use them.
#pragma once
#include "bench.hpp"

namespace bench {

// name= dir= of the arguments; no helper thread, so that nothing runs beside what is measured.
kvshm_arena* attach_arena(const Args& args);
kvshm_options options_of(const Args& args);
kvshm_info info_of(kvshm_arena* a);

// Page size of the arena's mapping as the kernel counts it: 2 MiB if most of what is mapped is.
struct Pages {
  std::uint64_t bytes = 0, huge_bytes = 0, page_bytes = 0;
};
Pages pages_of(kvshm_arena* a);
Line& add_pages(Line& line, kvshm_arena* a);

// Holds and gives back every key once, so that page tables and private counts are there.
void warm_up(kvshm_arena* a, const std::vector<Key>& keys);

}  // namespace bench
