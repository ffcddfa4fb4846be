#include "arena/step.hpp"

#ifdef KVSHM_STEPS
#include <atomic>

namespace kvshm {
namespace {
std::atomic<StepFn> hook{nullptr};
std::atomic<void*> hook_user{nullptr};
}  // namespace

void set_step_hook(StepFn fn, void* user) {
  hook_user.store(user);
  hook.store(fn);
}

void step(const char* name) {
  if (StepFn fn = hook.load(std::memory_order_relaxed)) fn(name, hook_user.load());
}

}  // namespace kvshm
#endif
