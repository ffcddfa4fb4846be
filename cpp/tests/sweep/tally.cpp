// SPDX-License-Identifier: Apache-2.0
#include "tally.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

namespace kvshm_sweep {
namespace {

// Of this process. Read by its threads, written while there is one.
Plan plan;
std::atomic<int> steps{0};
bool paused = false;

void at_step(const char* name, void*) {
  if (plan.aside) plan.aside(name);
  const int n = ++steps;
  if (n == plan.die_at || (!plan.die_at_name.empty() && plan.die_at_name == name)) die(name);
  if (paused || !plan.pause) return;
  if (n != plan.pause_at && (plan.pause_at_name.empty() || plan.pause_at_name != name)) return;
  paused = true;
  plan.pause();
}

}  // namespace

Tally& tally() {
  static Tally* t = [] {
    void* p =
        mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::runtime_error("no memory for the tally");
    auto* made = static_cast<Tally*>(p);
    made->last = kvshm::kStepCount;
    kvshm::set_step_counters(made->hits);
    return made;
  }();
  return *t;
}

const char* last_step() {
  const unsigned id = tally().last;
  return id < kvshm::kStepCount ? kvshm::kStepNames[id].data() : "";
}

void die(const char* step) {
  const unsigned id = kvshm::find_step(step);
  if (id < kvshm::kStepCount) tally().deaths[id]++;
  tally().last = id;
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

void follow(Plan p) {
  kvshm::set_step_hook(nullptr, nullptr);
  plan = std::move(p);
  steps = 0;
  paused = false;
  kvshm::set_step_hook(at_step, nullptr);
}

void add_aside(std::function<void(const char*)> aside) {
  plan.aside = std::move(aside);
  kvshm::set_step_hook(at_step, nullptr);
}

std::string failures() {
  static int seen = 0;
  const auto& all = ::testing::UnitTest::GetInstance()->ad_hoc_test_result();
  std::string text;
  for (; seen < all.total_part_count(); seen++) {
    const auto& part = all.GetTestPartResult(seen);
    if (!part.failed()) continue;
    text += std::string(part.file_name() ? part.file_name() : "") + ":" +
            std::to_string(part.line_number()) + ": " + part.summary() + "\n";
  }
  return text;
}

}  // namespace kvshm_sweep
