// Step points: places, by name, where a test may pause, kill, delay or make a call fail. One stands
// before every shared write, and where it matters after it. They exist only in builds with
// KVSHM_STEPS (never in the library that is shipped); arena/steps.def lists them all, and a name
// that is not in the list does not compile.
#pragma once
#ifdef KVSHM_STEPS
#include <atomic>
#include <cstdint>
#include <string_view>

namespace kvshm {

inline constexpr std::string_view kStepNames[] = {
#define KVSHM_STEP_NAME(name) name,
#include "arena/steps.def"
#undef KVSHM_STEP_NAME
};
inline constexpr unsigned kStepCount = sizeof kStepNames / sizeof *kStepNames;

constexpr unsigned find_step(std::string_view name) {  // kStepCount: there is none
  unsigned i = 0;
  while (i < kStepCount && kStepNames[i] != name) i++;
  return i;
}
consteval unsigned step_id(std::string_view name) {
  const unsigned i = find_step(name);
  if (i == kStepCount) throw "this step is not in arena/steps.def";
  return i;
}

// Called at every step by the thread that comes to it.
using StepFn = void (*)(const char* name, void* user);
void set_step_hook(StepFn fn, void* user);
// kStepCount counters, which may be shared with other processes; nullptr: none.
void set_step_counters(std::atomic<std::uint64_t>* counters);
// From now on the call at this step fails with that errno (0: works again).
void set_step_error(std::string_view name, int error);

void step(unsigned id);
bool step_error(unsigned id);

}  // namespace kvshm
#define KVSHM_STEP(name) ::kvshm::step(::kvshm::step_id(name))
// True where a test wants the call to fail, with errno set; always false in the library.
#define KVSHM_STEP_ERROR(name) ::kvshm::step_error(::kvshm::step_id(name))
#else
#define KVSHM_STEP(name) ((void)0)
#define KVSHM_STEP_ERROR(name) false
#endif
