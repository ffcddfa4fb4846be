// SPDX-License-Identifier: Apache-2.0
// Every operation killed at every step of it. One JSON document on stdout, progress on stderr.
//
//   sweep                all of it: every step, reapers killed too, pairs at random
//   sweep --short        every step; reapers for ten seconds, pairs for four
//   --seconds N          for the pairs (60; short: 4) and the reapers (120; short: 10)
//   --seed N             of what is taken at random
//   --only NAME          one operation
//   --beside NAME        ... held up at each of its steps, while this one runs; all = each one
//   --break NAME         with a negative control turned on: it should not end well
//   --controls           every control once: each must be seen, and nothing without it
//   --control NAME       one of them
//   --list               the operations and controls
#include <unistd.h>

#include <algorithm>
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
  std::string only, beside;
};

// The names of an operation's steps, in their order.
using Steps = std::vector<std::string>;
using AllSteps = std::map<std::string, Steps>;

// Kill at step 1, 2, ... until the operation comes to its end.
Steps every_step(const Op& op, Report& report) {
  Steps names;
  for (int at = 1;; at++) {
    const Outcome out = run_one(op, at);
    report.add(op.name, out, "step " + std::to_string(at));
    if (!out.died) return names;
    names.push_back(last_step());
    if (op.repeats && at == kRepeating) return names;
    if (at > 1000) {
      report.violation(op.name, "it does not end");
      return names;
    }
  }
}

int any_of(const Steps& steps, std::mt19937& random) {
  return 1 + int(random() % unsigned(steps.size()));
}

// The reaper dies too, at each of its steps in turn, after deaths of the operation at random.
void kill_reapers(const std::vector<Op>& ops, const AllSteps& steps, Clock::time_point until,
                  std::mt19937& random, Report& report) {
  std::map<std::string, int> next;
  while (Clock::now() < until) {
    const Op& op = ops[random() % ops.size()];
    const Steps& its = steps.at(op.name);
    if (its.empty()) continue;
    const int at = any_of(its, random);
    int& m = next[op.name];
    bool died = false;
    const Outcome out = run_one(op, at, ++m, &died);
    report.add(op.name, out,
               "step " + std::to_string(at) + ", its reaper at step " + std::to_string(m));
    report.reaper_deaths += died;
    if (!died && m > 2) m = 0;  // beyond its last step
  }
}

std::string where_of(const Pair& p, const AllSteps& steps) {
  return "step " + std::to_string(p.second_at) + ", while '" + p.first->name +
         "' was held up at step " + std::to_string(p.first_at) + ", " +
         steps.at(p.first->name).at(std::size_t(p.first_at) - 1);
}

void pairs(const std::vector<Op>& all, const AllSteps& steps, Clock::time_point until,
           std::mt19937& random, Report& report) {
  std::vector<const Op*> ops;
  for (const Op& op : all)
    if (!op.alone && !steps.at(op.name).empty()) ops.push_back(&op);
  while (!ops.empty() && Clock::now() < until) {
    Pair p{ops[random() % ops.size()], ops[random() % ops.size()]};
    p.first_at = any_of(steps.at(p.first->name), random);
    p.second_at = random() % 4 ? any_of(steps.at(p.second->name), random) : 0;
    const Outcome out = run_pair(p);
    report.add(p.second->name, out, where_of(p, steps));
    report.pairs++;
  }
}

// Each of `firsts` held up at every step of its, while each of `seconds` runs to its end.
void every_pair(const std::vector<Op>& firsts, const std::vector<Op>& seconds,
                const AllSteps& steps, Report& report) {
  for (const Op& first : firsts) {
    for (const Op& second : seconds) {
      if (first.alone || second.alone) continue;
      report.progress(second.name.c_str(), 0, seconds.size());
      Pair p{&first, &second};
      const int n = int(steps.at(first.name).size());
      for (p.first_at = 1; p.first_at <= (first.repeats ? std::min(n, 100) : n); p.first_at++) {
        report.add(second.name, run_pair(p), where_of(p, steps));
        report.pairs++;
      }
    }
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
    else if (arg == "--beside")
      o.beside = value;
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
  AllSteps steps;
  for (std::size_t i = 0; i < ops.size(); i++) {
    report.progress("every step", i, ops.size());
    steps[ops[i].name] = every_step(ops[i], report);
    if (steps[ops[i].name].empty()) report.violation(ops[i].name, "it has no step");
  }
  if (!o.beside.empty()) {
    std::vector<Op> seconds = all_ops();
    if (o.beside != "all")
      std::erase_if(seconds, [&](const Op& op) { return op.name != o.beside; });
    every_pair(ops, seconds, steps, report);
    if (!report.pairs) report.violation(o.beside, "no pair of operations has such names");
    return report.write(false);
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
