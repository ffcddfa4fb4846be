// SPDX-License-Identifier: Apache-2.0
// What is run: a scenario must pass, and fail with each of its statements weakened.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace weak {

struct Outcome {
  bool passed;
  std::uint64_t runs;   // interleavings tried
  std::string problem;  // Relacy's word for what went wrong
};

struct Scenario {
  const char* name;
  Outcome (*run)(std::uint64_t runs, std::uint64_t seed, bool trail);
  std::vector<std::string> controls;  // places whose order the scenario depends on
};

std::vector<Scenario> scenarios();

}  // namespace weak
