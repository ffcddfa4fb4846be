// SPDX-License-Identifier: Apache-2.0
// At every step of the library: perhaps a delay, perhaps the end. And the alarm, at any instruction.
#pragma once
#include <kvshm.h>

#include "random.hpp"
#include "shared.hpp"

namespace torture {

class Death {
 public:
  // In a worker, before it opens the arena.
  static void prepare(Shared& s, Record& r);
  static void attached(kvshm_arena* a);  // what the census looks at; nullptr: no longer
  static void arm();                     // deaths at steps count from here
  static void thread(unsigned number, std::uint64_t seed);  // each thread, with its delays
  static void operation(std::uint8_t op);                   // what this thread does now
  [[noreturn]] static void now(Way way, unsigned step);
};

}  // namespace torture
