// SPDX-License-Identifier: Apache-2.0
// Ends of a worker that nobody planned, on request: to see that they are reported.
#pragma once
#include <string>

namespace torture {

// abort: as a failed check of the C library; throw: an exception that nobody catches; stack: no end
// of it; said: a line on stderr, after which it goes on.
inline constexpr const char* kFaults[] = {"none", "abort", "throw", "stack", "said"};

unsigned fault_named(const std::string& name);  // 0: none
void commit_fault(unsigned fault);

}  // namespace torture
