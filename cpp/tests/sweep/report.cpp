// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <unistd.h>

namespace kvshm_sweep {

std::string quoted(const std::string& s) {
  std::string q = "\"";
  char hex[8];
  for (const char c : s) {
    if (c == '"' || c == '\\') q += '\\';
    if (static_cast<unsigned char>(c) < 32) {
      std::snprintf(hex, sizeof hex, "\\u%04x", c);
      q += hex;
    } else {
      q += c;
    }
  }
  return q + '"';
}

Report::Report() : out_(dup(1)) {
  dup2(2, 1);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
}

void Report::add(const std::string& op, const Outcome& out, const std::string& where) {
  runs_++;
  deaths_[op] += out.died;
  if (!out.problems.empty())
    violation(op, where + (out.died ? std::string(" (") + last_step() + ")" : " (it ended)") +
                      ":\n" + out.problems);
}

void Report::violation(const std::string& op, const std::string& what) {
  violations_++;
  if (texts_.size() >= 20) return;
  texts_.push_back(op + ", " + what);
  std::fprintf(stderr, "\n%s\n", texts_.back().c_str());
}

void Report::progress(const char* what, std::size_t done, std::size_t of) {
  std::fprintf(stderr, "%ssweep: %s %zu/%zu, %llu runs, %llu violations%s", isatty(2) ? "\r" : "",
               what, done, of, (unsigned long long)runs_, (unsigned long long)violations_,
               isatty(2) ? "\033[K" : "\n");
}

bool Report::send(const std::string& document) {
  return ::write(out_, document.data(), document.size()) == ssize_t(document.size());
}

int Report::write(bool whole) {
  std::uint64_t kills = 0;
  std::string steps, missed, ops, texts;
  const auto more = [](std::string& list, const std::string& item) {
    list += (list.empty() ? "" : ", ") + item;
  };
  for (unsigned i = 0; i < kvshm::kStepCount; i++) {
    const std::string name = quoted(std::string(kvshm::kStepNames[i]));
    const std::uint64_t deaths = tally().deaths[i];
    kills += deaths;
    more(steps, name + ": " + std::to_string(deaths));
    if (!deaths) more(missed, name);
  }
  for (const auto& [op, deaths] : deaths_) more(ops, quoted(op) + ": " + std::to_string(deaths));
  for (const auto& t : texts_) more(texts, quoted(t));
  std::string doc = "{\"kills\": " + std::to_string(kills) +
                    ", \"violations\": " + std::to_string(violations_) +
                    ", \"runs\": " + std::to_string(runs_) +
                    ", \"reapers_killed\": " + std::to_string(reaper_deaths) +
                    ", \"pairs\": " + std::to_string(pairs) + ",\n \"steps\": {" + steps +
                    "},\n \"steps_missed\": [" + missed + "],\n \"operations\": {" + ops +
                    "},\n \"first_violations\": [" + texts + "]}\n";
  if (!send(doc)) return 2;
  std::fprintf(
      stderr, "\nsweep: %llu runs, %llu kills, %llu violations, steps without a death: %s\n",
      (unsigned long long)runs_, (unsigned long long)kills, (unsigned long long)violations_,
      missed.empty() ? "none"
      : whole        ? missed.c_str()
                     : "others");
  return violations_ || (whole && !missed.empty()) ? 1 : 0;
}

}  // namespace kvshm_sweep
