// SPDX-License-Identifier: Apache-2.0
// The whole arena, while nobody works on it.
#pragma once
#include <kvshm.h>

#include <string>

#include "shape.hpp"
#include "shared.hpp"

namespace torture {

// Reaps the dead and looks at everything. Live workers are paused and keep what they hold; `alone`:
// there are none, and every block must be free in the end, and to be had in one allocation. Returns
// what is wrong, in words; "" = nothing.
std::string check_quiet(const std::string& name, const Shape& shape, bool alone);

}  // namespace torture
