// Step points: places where a test may pause, kill or delay. They exist only in builds with
// KVSHM_STEPS (never in the library that is shipped).
#pragma once
#ifdef KVSHM_STEPS
namespace kvshm {
using StepFn = void (*)(const char* name, void* user);
void set_step_hook(StepFn fn, void* user);
void step(const char* name);
}  // namespace kvshm
#define KVSHM_STEP(name) ::kvshm::step(name)
#else
#define KVSHM_STEP(name) ((void)0)
#endif
