// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <functional>

#include "arena/breaks.hpp"
#include "controls.hpp"
#include "report.hpp"

namespace kvshm_sweep {
namespace {

// What is seen first; "": nothing.
std::string look(const Control& c) {
  if (!c.op.empty()) {
    const Op& op = op_named(c.op);
    for (int at = 1; at < 1000; at++) {
      const Outcome out = run_one(op, at);
      if (!out.problems.empty())
        return c.op + (out.died ? ", died at " + std::string(last_step()) : ", ended") + ":\n" +
               out.problems;
      if (!out.died) break;
    }
  }
  for (const Pair& p : c.pairs) {
    const Outcome out = run_pair(p);
    if (!out.reached) return "UNREACHED " + p.first_at_name;
    if (!out.problems.empty())
      return p.second->name + ", while " + p.first->name + " was held up at " + p.first_at_name +
             ":\n" + out.problems;
  }
  for (const Script& s : c.scripts) {
    const Outcome out = run_script(s);
    if (!out.problems.empty()) return s.first.name + ", held up at " + s.at + ":\n" + out.problems;
  }
  return "";
}

std::string first_lines(const std::string& text) {  // enough to see for what reason
  return text.substr(0, 500);
}

std::string protocol_name(const std::string& name) {
  for (const auto& b : kvshm::kBreaks)
    if (name == b.name) return b.control;
  throw std::runtime_error("no control " + name);
}

// The table has every flag that there is.
void find_forgotten(std::vector<Control>& all) {
  for (const auto& b : kvshm::kBreaks) {
    bool there = false;
    for (const Control& c : all) there |= c.name == b.name;
    if (!there) all.push_back({.name = b.name});
  }
}

}  // namespace

int run_controls(const std::string& only) {
  Report report;
  tally();
  int caught = 0, wrong = 0, n = 0;
  std::string list, missed;
  std::vector<Control> all = controls();
  find_forgotten(all);
  for (std::size_t i = 0; i < all.size(); i++) {
    const Control& c = all[i];
    if (!only.empty() && c.name != only) continue;
    n++;
    const std::string well =
        i < controls().size() ? look(controls()[i]) : "";  // a script keeps notes: used once
    const std::string control = protocol_name(c.name);
    kvshm::set_broken(c.name.c_str(), true);
    const std::string seen = look(c);
    kvshm::set_broken(c.name.c_str(), false);
    const bool ok = well.empty() && !seen.empty() && seen.rfind("UNREACHED", 0) != 0;
    caught += ok;
    std::fprintf(stderr, "%s %s\n", ok ? "caught" : "MISSED", c.name.c_str());
    if (!well.empty()) std::fprintf(stderr, "  without it: %s\n", first_lines(well).c_str());
    std::fprintf(stderr, "  %s\n", first_lines(seen).c_str());
    wrong += !ok;
    list += (list.empty() ? "" : ", ") + quoted(control) + ": " + quoted(first_lines(seen));
    if (!ok) missed += (missed.empty() ? "" : ", ") + quoted(control);
  }
  report.send("{\"controls\": " + std::to_string(n) +
              ", \"controls_caught\": " + std::to_string(caught) + ", \"missed\": [" + missed +
              "],\n \"seen\": {" + list + "}}\n");
  return wrong || !n ? 1 : 0;
}

}  // namespace kvshm_sweep
