// SPDX-License-Identifier: Apache-2.0
// Runs the scenarios against the core's own sources under the C++ memory model (Relacy), then each
// with the statements weakened that it depends on. Exit 0: all passed, all controls failed.
//
//   weak_memory [--runs N] [--seed N] [--only TEXT] [--trail] [--json]
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "weak/memory.hpp"
#include "weak/scenarios.hpp"

namespace {

struct Options {
  std::uint64_t runs = 20000, seed = 1;
  std::string only;
  bool trail = false, json = false;
};

bool parse(int argc, char** argv, Options* o) {
  for (int i = 1; i < argc; i++) {
    const std::string a = argv[i];
    const char* v = i + 1 < argc ? argv[i + 1] : nullptr;
    if (a == "--trail")
      o->trail = true;
    else if (a == "--json")
      o->json = true;
    else if (a == "--runs" && v)
      o->runs = std::strtoull(argv[++i], nullptr, 10);
    else if (a == "--seed" && v)
      o->seed = std::strtoull(argv[++i], nullptr, 10);
    else if (a == "--only" && v)
      o->only = argv[++i];
    else
      return false;
  }
  return o->runs > 0;
}

struct Totals {
  std::uint64_t runs = 0;
  unsigned scenarios = 0, passed = 0, controls = 0, caught = 0;
};

void line(const char* name, const std::string& control, const weak::Outcome& r, bool as_wanted) {
  std::fprintf(stderr, "%-28s %-52s %-4s %8llu runs  %s  %s\n", name, control.c_str(),
               r.passed ? "ok" : "bad", static_cast<unsigned long long>(r.runs),
               as_wanted ? "as expected" : "UNEXPECTED", r.problem.c_str());
}

void check(const weak::Scenario& s, const Options& o, Totals* t) {
  const weak::Outcome r = s.run(o.runs, o.seed, o.trail);
  t->runs += r.runs;
  t->scenarios++;
  t->passed += r.passed;
  line(s.name, "", r, r.passed);
  for (const std::string& c : s.controls) {
    t->controls++;
    weak::Outcome w{true, 0, "no such statement"};
    if (weak::weaken(c)) {
      w = s.run(o.runs, o.seed, false);
      if (w.passed && !weak::weakened_accesses()) w.problem = "the statement was never met";
    }
    weak::restore();
    t->runs += w.runs;
    t->caught += !w.passed;
    line(s.name, c, w, !w.passed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  if (!parse(argc, argv, &o)) {
    std::fprintf(stderr,
                 "usage: weak_memory [--runs N] [--seed N] [--only TEXT] [--trail] [--json]\n");
    return 2;
  }
  Totals t;
  for (const weak::Scenario& s : weak::scenarios())
    if (std::strstr(s.name, o.only.c_str())) check(s, o, &t);
  if (o.json)
    std::printf(
        "{\"scenarios\": %u, \"passed\": %u, \"controls\": %u, \"controls_caught\": %u, "
        "\"runs\": %llu}\n",
        t.scenarios, t.passed, t.controls, t.caught, static_cast<unsigned long long>(t.runs));
  return t.scenarios && t.passed == t.scenarios && t.caught == t.controls ? 0 : 1;
}
