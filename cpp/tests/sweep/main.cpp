// SPDX-License-Identifier: Apache-2.0
// Every operation killed at every step of it. One JSON document on stdout, progress on stderr.
//
//   sweep                all of it: every step, reapers killed too, pairs at random
//   sweep --short        every step; reapers for ten seconds, pairs for four
//   --seconds N          for the pairs (60; short: 4) and the reapers (120; short: 10)
//   --seed N             of what is taken at random
//   --only NAME          one operation
//   --break NAME         with a negative control turned on: it should not end well
//   --controls           every control once: each must be seen, and nothing without it
//   --control NAME       one of them
//   --list               the operations and controls
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "arena/breaks.hpp"
#include "controls.hpp"
#include "drive.hpp"
#include "report.hpp"

using namespace kvshm_sweep;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepeating = 900;

struct Options {
  bool brief = false;
  int seconds = 0;
  unsigned seed = 1;
  std::string only;
};

// Kill at step 1, 2, ... until the operation comes to its end. Returns the number of its steps.
int every_step(const Op& op, Report& report) {
  for (int at = 1;; at++) {
    const Outcome out = run_one(op, at);
    report.add(op.name, out, "step " + std::to_string(at));
    if (!out.died) return at - 1;
    if (op.repeats && at == kRepeating) return at;
    if (at > 1000) {
      report.violation(op.name, "it does not end");
      return at;
    }
  }
}

// The reaper dies too, at each of its steps in turn, after deaths of the operation at random.
void kill_reapers(const std::vector<Op>& ops, const std::map<std::string, int>& steps,
                  Clock::time_point until, std::mt19937& random, Report& report) {
  std::map<std::string, int> next;
  while (Clock::now() < until) {
    const Op& op = ops[random() % ops.size()];
    const int n = steps.at(op.name);
    if (!n) continue;
    const int at = 1 + int(random() % unsigned(n));
    int& m = next[op.name];
    bool died = false;
    const Outcome out = run_one(op, at, ++m, &died);
    report.add(op.name, out,
               "step " + std::to_string(at) + ", its reaper at step " + std::to_string(m));
    report.reaper_deaths += died;
    if (!died && m > 2) m = 0;  // beyond its last step
  }
}

void pairs(const std::vector<Op>& all, const std::map<std::string, int>& steps,
           Clock::time_point until, std::mt19937& random, Report& report) {
  std::vector<const Op*> ops;
  for (const Op& op : all)
    if (!op.alone && steps.at(op.name)) ops.push_back(&op);
  while (!ops.empty() && Clock::now() < until) {
    Pair p{ops[random() % ops.size()], ops[random() % ops.size()]};
    p.first_at = 1 + int(random() % unsigned(steps.at(p.first->name)));
    p.second_at = random() % 4 ? 1 + int(random() % unsigned(steps.at(p.second->name))) : 0;
    const Outcome out = run_pair(p);
    report.add(p.second->name, out,
               "step " + std::to_string(p.second_at) + ", while '" + p.first->name +
                   "' was held up at step " + std::to_string(p.first_at));
    report.pairs++;
  }
}

int list() {
  for (const Op& op : all_ops()) std::printf("%s\n", op.name.c_str());
  for (const auto& b : kvshm::kBreaks) std::printf("%s: %s\n", b.name, b.control);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  Options o;
  for (int i = 1; i < argc; i++) {
    const std::string arg = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (arg == "--list") return list();
    if (arg == "--controls") return run_controls("");
    if (arg == "--control") return run_controls(value);
    if (arg == "--short") {
      o.brief = true;
      continue;
    }
    if (arg == "--seconds")
      o.seconds = std::atoi(value);
    else if (arg == "--seed")
      o.seed = unsigned(std::atoi(value));
    else if (arg == "--only")
      o.only = value;
    else if (arg != "--break" || !kvshm::set_broken(value, true)) {
      std::fprintf(stderr, "sweep: %s %s?\n", argv[i], value);
      return 2;
    }
    i++;
  }
  Report report;
  tally();
  std::vector<Op> ops = all_ops();
  if (!o.only.empty()) std::erase_if(ops, [&](const Op& op) { return op.name != o.only; });
  std::map<std::string, int> steps;
  for (std::size_t i = 0; i < ops.size(); i++) {
    report.progress("every step", i, ops.size());
    steps[ops[i].name] = every_step(ops[i], report);
    if (!steps[ops[i].name]) report.violation(ops[i].name, "it has no step");
  }
  std::mt19937 random(o.seed);
  const auto span = [&](int brief, int full) {
    return Clock::now() + std::chrono::seconds(o.seconds ? o.seconds : o.brief ? brief : full);
  };
  report.progress("reapers", 0, 1);
  kill_reapers(ops, steps, span(10, 120), random, report);
  report.progress("pairs", 0, 1);
  pairs(ops, steps, span(4, 60), random, report);
  return report.write(o.only.empty());
}
