// SPDX-License-Identifier: Apache-2.0
// What a worker does, by name. The numbers say how often, relative to each other.
#pragma once
#include "worker.hpp"

namespace torture {

#define TORTURE_OPS(X)      \
  X(match, 10)              \
  X(match_scattered, 5)     \
  X(scan, 2)                \
  X(presence, 2)            \
  X(acquire, 10)            \
  X(upgrade, 5)             \
  X(pin, 2)                 \
  X(drop, 14)               \
  X(release, 10)            \
  X(trim, 2)                \
  X(lease_make, 2)          \
  X(no_cache, 3)            \
  X(priority, 2)            \
  X(allocate, 10)           \
  X(allocate_quiet, 5)      \
  X(allocate_keyless, 3)    \
  X(all_or_nothing, 5)      \
  X(write_and_register, 14) \
  X(abort_fill, 5)          \
  X(share, 7)               \
  X(join, 12)               \
  X(advance, 16)            \
  X(wait, 3)                \
  X(object_put, 4)          \
  X(object_get, 6)          \
  X(evict, 3)               \
  X(clear, 1)               \
  X(reset, 1)               \
  X(reap, 3)                \
  X(marks, 2)               \
  X(policy, 1)              \
  X(look, 2)                \
  X(audit, 2)               \
  X(reattach, 2)

enum Op : std::uint8_t {
  kOpening,  // and closing
#define X(name, weight) kOp_##name,
  TORTURE_OPS(X)
#undef X
      kOps
};
static_assert(kOps <= 64);

#define X(name, weight) void do_##name(Hand& w);
TORTURE_OPS(X)
#undef X

const char* op_name(unsigned op);
void run_op(Op op, Hand& w);
Op some_op(Rng& rng);

}  // namespace torture
