// Negative controls: places where a test build can be told to do what the protocol forbids, so that
// a test can show that it would see it. Never in the library that is shipped, where KVSHM_BROKEN is
// the constant false; arena/breaks.def lists them.
#pragma once
#ifdef KVSHM_STEPS
namespace kvshm {

enum class Break : unsigned {
#define KVSHM_BREAK(name, control) name,
#include "arena/breaks.def"
#undef KVSHM_BREAK
  kCount
};
struct BreakInfo {
  const char *name, *control;  // control: what the protocol calls it
};
inline constexpr BreakInfo kBreaks[] = {
#define KVSHM_BREAK(name, control) {#name, control},
#include "arena/breaks.def"
#undef KVSHM_BREAK
};

bool broken(Break b);
bool broken_at_all();
// For this process and those it forks. False: no control of that name.
bool set_broken(const char* name, bool on);

}  // namespace kvshm
#define KVSHM_BROKEN(name) (__builtin_expect(::kvshm::broken(::kvshm::Break::name), 0))
#else
#define KVSHM_BROKEN(name) false
namespace kvshm {
constexpr bool broken_at_all() { return false; }
}  // namespace kvshm
#endif
