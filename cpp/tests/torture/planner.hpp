// SPDX-License-Identifier: Apache-2.0
// How each worker shall die: at steps where few have died so far, and anywhere.
#pragma once
#include "nursery.hpp"
#include "random.hpp"

namespace torture {

class Planner {
 public:
  Planner(Shared& shared, const Options& options, std::uint64_t seed);
  // fresh: nobody has opened this round's arena yet, so that somebody must make it.
  Plan next(const Shape& shape, const Deaths& deaths, bool fresh);
  Plan remover(const Deaths& deaths);
  const Shape& shape();

 private:
  std::uint32_t rare_step(const Deaths& deaths, const char* prefix);
  std::uint8_t operation_for(std::uint32_t step) const;
  Shared& shared_;
  const Options& options_;
  Rng rng_;
  std::uint64_t lives_ = 0;
};

}  // namespace torture
