#include "arena/breaks.hpp"

#ifdef KVSHM_STEPS
#include <atomic>
#include <cstdint>
#include <cstring>

namespace kvshm {
namespace {
static_assert(unsigned(Break::kCount) <= 64);
// relaxed: set before the processes and threads that meet them are started
std::atomic<std::uint64_t> on_now{0};
}  // namespace

bool broken(Break b) { return on_now.load(std::memory_order_relaxed) >> unsigned(b) & 1; }

bool broken_at_all() { return on_now.load(std::memory_order_relaxed) != 0; }

bool set_broken(const char* name, bool on) {
  for (unsigned i = 0; i < unsigned(Break::kCount); i++) {
    if (std::strcmp(kBreaks[i].name, name) != 0) continue;
    const std::uint64_t bit = std::uint64_t{1} << i;
    on ? on_now.fetch_or(bit) : on_now.fetch_and(~bit);
    return true;
  }
  return false;
}

}  // namespace kvshm
#endif
