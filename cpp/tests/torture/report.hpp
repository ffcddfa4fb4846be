// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "driver.hpp"

namespace torture {

// One JSON document on stdout. Returns the exit status.
int report(const Shared& shared, const Options& options, std::uint64_t seed, const Driver& driver);

}  // namespace torture
