#include "arena/step.hpp"

#ifdef KVSHM_STEPS
#include <errno.h>

namespace kvshm {
namespace {
// relaxed: set before the processes and threads that meet them are started
std::atomic<StepFn> hook{nullptr};
std::atomic<void*> hook_user{nullptr};
std::atomic<std::atomic<std::uint64_t>*> counters{nullptr};
std::atomic<int> errors[kStepCount];
}  // namespace

void set_step_hook(StepFn fn, void* user) {
  hook_user.store(user);
  hook.store(fn);
}

void set_step_counters(std::atomic<std::uint64_t>* c) { counters.store(c); }

void set_step_error(std::string_view name, int error) {
  const unsigned id = find_step(name);
  if (id < kStepCount) errors[id].store(error);
}

void step(unsigned id) {
  if (auto* c = counters.load(std::memory_order_relaxed))
    c[id].fetch_add(1, std::memory_order_relaxed);
  if (StepFn fn = hook.load(std::memory_order_relaxed)) fn(kStepNames[id].data(), hook_user.load());
}

bool step_error(unsigned id) {
  step(id);
  const int e = errors[id].load(std::memory_order_relaxed);
  if (e) errno = e;
  return e != 0;
}

}  // namespace kvshm
#endif
