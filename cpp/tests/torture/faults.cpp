// SPDX-License-Identifier: Apache-2.0
#include "faults.hpp"

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <stdexcept>

namespace torture {
namespace {

// 256 MiB of frames.
char deep(unsigned frames) {
  volatile char here[4096];
  here[0] = char(frames);
  return frames ? char(deep(frames - 1) + here[0]) : here[0];
}

}  // namespace

unsigned fault_named(const std::string& name) {
  for (unsigned i = 1; i < std::size(kFaults); i++)
    if (name == kFaults[i]) return i;
  return 0;
}

void commit_fault(unsigned fault) {
  const std::string name = kFaults[fault];
  if (name == "abort") std::abort();
  if (name == "throw") throw std::runtime_error("a fault on request");
  if (name == "stack") std::exit(deep(65536));
  if (name == "said") std::fputs("a line on request\n", stderr);
}

}  // namespace torture
