// SPDX-License-Identifier: Apache-2.0
// The negative controls of the protocol that are caught here, and by what.
#pragma once
#include <string>
#include <vector>

#include "drive.hpp"

namespace kvshm_sweep {

struct Control {
  std::string name;     // in arena/breaks.def
  std::string op = {};  // caught by killing this operation at every step
  std::vector<Pair> pairs = {};
  std::vector<Script> scripts = {};
};
std::vector<Control> controls();

// One JSON document: without the control all is well, with it something must be seen. 0: all caught.
int run_controls(const std::string& only);

}  // namespace kvshm_sweep
