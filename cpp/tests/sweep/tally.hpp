// SPDX-License-Identifier: Apache-2.0
// Who died where: counters in memory that all processes of a run share, and the ways to die, to
// pause and to do something aside at a step.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "arena/step.hpp"
#include "support.hpp"

namespace kvshm_sweep {

using namespace kvshm_test;

struct Tally {
  std::atomic<std::uint64_t> hits[kvshm::kStepCount], deaths[kvshm::kStepCount];
  std::atomic<std::uint32_t> last;  // the step of the latest death
};
Tally& tally();
const char* last_step();  // "" before the first death

[[noreturn]] void die(const char* step);

// What a child does at its steps; each call replaces what was set before.
struct Plan {
  int die_at = 0;                // SIGKILL at the n-th step from now; 0: never
  std::string die_at_name = {};  // or at the first step of this name
  int pause_at = 0;              // at the n-th step from now: `pause`
  std::string pause_at_name = {};
  std::function<void()> pause = {};
  std::function<void(const char*)> aside = {};  // at every step, before the others
};
void follow(Plan plan);
// The same with what is set now, and something aside.
void add_aside(std::function<void(const char*)> aside);

// What went wrong since the last call, by the checks of this process; "": nothing.
std::string failures();

}  // namespace kvshm_sweep
