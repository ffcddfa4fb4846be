// SPDX-License-Identifier: Apache-2.0
// The runs: an operation killed at one of its steps; its reaper killed as well; an operation held
// up at a step while another comes, is killed, and is reaped.
#pragma once
#include "scene.hpp"

namespace kvshm_sweep {

struct Outcome {
  bool died = false;     // false: the operation came to its end
  bool reached = true;   // of a pair: the one held up came to that step
  std::string problems;  // "": none
};

// Killed at step `at` (0: not). reaper_at: then its reaper at that step of its work (0: not), and
// *reaper_died says whether it came so far.
Outcome run_one(const Op& op, int at, int reaper_at = 0, bool* reaper_died = nullptr);

// `first` is held up at a step, by number or by name; `second` is killed at `at` (0: it ends); the
// dead is reaped, `first` goes on.
struct Pair {
  const Op *first, *second;
  int first_at = 0;
  std::string first_at_name = {};
  int second_at = 0;
};
Outcome run_pair(const Pair& p);

// `first` is held up at a step, the survivor does something itself, `first` goes on.
struct Script {
  Op first;
  std::string at;
  std::function<void(Scene&)> meanwhile, afterwards = {};
  bool ends_well = false;  // it must end with 0; else only not with kWrong
};
Outcome run_script(const Script& script);

}  // namespace kvshm_sweep
