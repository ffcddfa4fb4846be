// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "ops.hpp"

namespace torture {
namespace {

std::string quoted(const char* text) {
  std::string out = "\"";
  for (const char* p = text; *p; p++) {
    if (*p == '"' || *p == '\\') out += '\\';
    out += static_cast<unsigned char>(*p) < 32 ? ' ' : *p;
  }
  out += '"';
  return out;
}

class Object {
 public:
  void raw(const char* name, const std::string& value) {
    if (!text_.empty()) text_ += ", ";
    text_.append(quoted(name)).append(": ").append(value);
  }
  void number(const char* name, std::uint64_t n) { raw(name, std::to_string(n)); }
  std::string done() const { return std::string("{").append(text_).append("}"); }

 private:
  std::string text_;
};

std::string list(const std::vector<std::string>& items) {
  std::string out = "[";
  for (std::size_t i = 0; i < items.size(); i++) {
    if (i) out += ", ";
    out += items[i];
  }
  out += ']';
  return out;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    out.push_back(quoted(text.substr(at, end - at).c_str()));
    at = end + 1;
  }
  return out;
}

// What each process did last, oldest first.
void tell_last(const Shared& s, unsigned workers) {
  for (unsigned w = 0; w < workers; w++) {
    const Record& r = s.workers[w];
    for (unsigned thread = 0; thread < r.plan.threads; thread++) {
      const Track& t = r.tracks[thread];
      const std::uint32_t n = t.lines.load(), first = n > kLogLines ? n - kLogLines : 0;
      std::fprintf(stderr, "worker %u, thread %u, slot %u, seed %llu, in %s:\n", w, thread,
                   r.slot.load(), (unsigned long long)r.plan.seed, op_name(t.op));
      for (std::uint32_t i = first; i < n; i++) {
        const LogLine& l = t.log[i % kLogLines];
        std::fprintf(stderr, "  %-18s %3u  block %u, life %llu: %d\n", op_name(l.op), l.what, l.id,
                     (unsigned long long)l.seq, l.rc);
      }
    }
  }
}

}  // namespace

int report(const Shared& s, const Options& o, std::uint64_t seed, const Driver& driver) {
  const Deaths& d = driver.deaths();
  Object by_step, by_way, by_state, by_op, passes, tallies;
  std::vector<std::string> missed, texts, words;
  unsigned hit = 0;
  for (unsigned i = 0; i < kMaxSteps; i++) {
    const char* name = kvshm::kStepNames[i].data();
    std::uint64_t came_by = 0;
    for (const auto& n : s.passes[i]) came_by += n.load();
    by_step.number(name, d.by_step[i]);
    passes.number(name, came_by);
    if (d.by_step[i])
      hit++;
    else
      missed.push_back(quoted(name));
  }
  for (unsigned i = 1; i < 4; i++) by_way.number(kWayNames[i], d.by_way[i]);
  for (unsigned i = 0; i < kStateBits; i++) by_state.number(kStateNames[i], d.by_state[i]);
  for (unsigned i = 0; i < kOps; i++) by_op.number(op_name(i), d.by_op[i]);
  const auto sum = [&](Tally t) {
    std::uint64_t n = 0;
    for (const Record& r : s.workers) n += r.tallies[t].load();
    return n;
  };
#define X(name, text) tallies.number(#name, sum(k_##name));
  TORTURE_TALLIES(X)
#undef X
  const std::uint32_t violations = s.violations.load();
  for (unsigned i = 0; i < violations && i < kMaxViolations; i++)
    texts.push_back(quoted(s.texts[i]));

  for (const std::string& said : driver.words()) words.push_back(list(lines_of(said)));

  Object all;
  all.number("kills", d.kills);
  all.number("violations", violations);
  all.raw("violation_texts", list(texts));
  all.raw("last_words", list(words));
  all.raw("control", o.control.empty() ? "null" : quoted(o.control.c_str()));
  all.number("seed", seed);
  all.raw("seconds", std::to_string(driver.seconds()));
  all.number("rounds", driver.rounds);
  all.number("checks", driver.checks);
  all.number("ended_in_order", d.ended);
  all.number("late_device_writes", driver.late_writes());
  all.number("steps_hit", hit);
  all.raw("steps_missed", list(missed));
  all.raw("by_way", by_way.done());
  all.raw("by_state", by_state.done());
  all.raw("by_operation", by_op.done());
  all.raw("by_step", by_step.done());
  all.raw("passes", passes.done());
#define X(name, text) all.number(#name, sum(k_##name));
  TORTURE_TALLIES(X)
#undef X
  std::printf("%s\n", all.done().c_str());
  if (violations && o.control.empty()) {
    tell_last(s, o.workers);
    for (const auto& t : texts) std::fprintf(stderr, "VIOLATION %s\n", t.c_str());
    for (const std::string& said : driver.words()) std::fprintf(stderr, "%s\n", said.c_str());
    std::fprintf(stderr, "seed %llu; the arena is kept as %s\n", (unsigned long long)seed,
                 driver.kept.empty() ? "(it could not be kept)" : driver.kept.c_str());
  }
  return violations || (o.require_steps && !missed.empty()) ? 1 : 0;
}

}  // namespace torture
