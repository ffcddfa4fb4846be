// SPDX-License-Identifier: Apache-2.0
// The reference for copies: the best loop that we can write for this processor, tried in several
// forms in the same run. Destinations are 64-byte aligned, lengths multiples of 256.
#pragma once
#include <cstddef>
#include <vector>

namespace bench {

struct CopyLoop {
  const char* name;
  void (*run)(char* to, const char* from, std::size_t n);
  bool streams;  // non-temporal: part of the limit
};
std::vector<CopyLoop> copy_loops();  // those that this processor can run; memcpy is the first

}  // namespace bench
