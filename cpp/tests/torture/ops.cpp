// SPDX-License-Identifier: Apache-2.0
#include "ops.hpp"

#include "death.hpp"

namespace torture {
namespace {

struct Entry {
  const char* name;
  unsigned weight;
  void (*run)(Hand&);
};
constexpr Entry kTable[] = {{"opening", 0, nullptr},
#define X(name, weight) {#name, weight, do_##name},
                            TORTURE_OPS(X)
#undef X
};

constexpr unsigned total() {
  unsigned n = 0;
  for (const Entry& e : kTable) n += e.weight;
  return n;
}

}  // namespace

const char* op_name(unsigned op) { return op < kOps ? kTable[op].name : "?"; }

void run_op(Op op, Hand& w) {
  Death::operation(op);
  if (kTable[op].run) kTable[op].run(w);
}

Op some_op(Rng& rng) {
  std::uint32_t at = rng.below(total());
  for (unsigned i = 0; i < kOps; i++) {
    if (at < kTable[i].weight) return Op(i);
    at -= kTable[i].weight;
  }
  return kOp_match;
}

}  // namespace torture
