// SPDX-License-Identifier: Apache-2.0
#include "death.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <unordered_map>

#include "arena/step.hpp"
#include "blocks/word.hpp"

namespace torture {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Of this process: written before its first thread, then only `left` and `table`.
Shared* shared;
Record* record;
std::atomic<std::uint32_t> left{0};
std::atomic<const kvshm_block_record*> table{nullptr};
std::uint64_t blocks;
std::uint64_t my_bit;
thread_local Rng* delays;
thread_local Track* track;
thread_local std::uint8_t doing;

// The words themselves: where is my bit? On the way into death, also in a signal handler.
std::uint32_t census() {
  const kvshm_block_record* t = table.load(std::memory_order_acquire);
  if (!t) return kNotAttached;
  std::uint32_t seen = 0;
  for (std::uint64_t i = 0; i < blocks; i++) {
    const auto w = reinterpret_cast<const std::atomic<std::uint64_t>*>(&t[i].word)->load(kRelaxed);
    if (!(w & my_bit)) continue;
    switch (kvshm::state(w)) {
      case kvshm::kFilling:
        seen |= kHeldFilling;
        break;
      case kvshm::kReady:
        seen |= kHeldReady;
        break;
      case kvshm::kReadyLast:
        seen |= kHeldLast;
        break;
      case kvshm::kEvicting:
        seen |= kHeldEvicting;
        break;
      default:
        break;
    }
  }
  return seen ? seen : std::uint32_t{kHeldNothing};
}

// The hook gets the names of the list itself: by their addresses, then.
unsigned index_of(const char* name) {
  static const auto* known = [] {
    auto* all = new std::unordered_map<const char*, unsigned>;
    for (unsigned i = 0; i < kMaxSteps; i++) all->emplace(kvshm::kStepNames[i].data(), i);
    return all;
  }();
  return known->at(name);
}

void rest(long ns) {
  const struct timespec t = {0, ns};
  nanosleep(&t, nullptr);
}

// Where two processes want one key they must meet in the middle of it.
bool is_meeting(unsigned step) {
  const std::string_view name = kvshm::kStepNames[step];
  return name.starts_with("insert.") || name.starts_with("lookup.");
}

void delay(unsigned step) {
  const Plan& p = record->plan;
  const std::uint32_t chance = p.hot && is_meeting(step) ? p.jitter + 30 : p.jitter;
  if (!delays || !delays->percent(chance)) return;
  const std::uint32_t kind = delays->below(100);
  if (kind < 40) {
    sched_yield();
  } else if (kind < 70) {
    for (std::uint32_t i = delays->spread(4000); i; i--) __asm__ volatile("" ::: "memory");
  } else if (kind < 97) {
    rest(1000 * delays->spread(100));
  } else {
    rest(100000 * delays->spread(20));
  }
}

bool paused() { return record->acked[0].load(kRelaxed) == (shared->pause.load(kRelaxed) | 1); }

void on_step(const char* name, void*) {
  const unsigned i = index_of(name);
  shared->passes[i][doing % 64].fetch_add(1, kRelaxed);
  record->step.store(std::uint16_t(i), kRelaxed);
  if (left.load(kRelaxed) && (record->plan.step == kNoStep || record->plan.step == i) &&
      !paused() && left.fetch_sub(1, kRelaxed) == 1)
    Death::now(Way::kStep, i);
  delay(i);
}

void on_alarm(int) {
  if (!paused()) Death::now(Way::kAlarm, kNoStep);
  const struct itimerval again = {{0, 0}, {0, 2000}};  // while the driver looks, nobody dies
  setitimer(ITIMER_REAL, &again, nullptr);
}

}  // namespace

void Death::prepare(Shared& s, Record& r) {
  shared = &s;
  record = &r;
  doing = 0;
  if (r.plan.fails) kvshm::set_step_error(r.plan.fails, ENOMEM);
  kvshm::set_step_hook(on_step, nullptr);
  struct sigaction act = {};
  act.sa_handler = on_alarm;
  act.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &act, nullptr);
  if (!r.plan.alarm_us) return;
  const struct itimerval once = {{0, 0}, {r.plan.alarm_us / 1000000, r.plan.alarm_us % 1000000}};
  setitimer(ITIMER_REAL, &once, nullptr);
}

void Death::attached(kvshm_arena* a) {
  if (!a) {
    record->slot.store(KVSHM_SLOTS, kRelaxed);
    return table.store(nullptr, std::memory_order_release);
  }
  kvshm_info info = KVSHM_INFO_INIT;
  if (kvshm_get_info(a, &info)) return;
  my_bit = kvshm::holder_bit(info.slot);
  record->slot.store(info.slot, kRelaxed);
  const kvshm_block_record* t = kvshm_block_table(a, &blocks);
  table.store(t, std::memory_order_release);
}

void Death::arm() { left.store(record->plan.count, kRelaxed); }

void Death::thread(unsigned number, std::uint64_t seed) {
  track = &record->tracks[number];
  delays = new Rng(seed);
}

void Death::operation(std::uint8_t op) {
  doing = op;
  record->op.store(op, kRelaxed);
  track->op.store(op, kRelaxed);
  shared->runs[op % 64].fetch_add(1, kRelaxed);
}

void Death::now(Way way, unsigned step) {
  record->states.store(census(), kRelaxed);
  record->step.store(std::uint16_t(step), kRelaxed);
  record->way.store(std::uint8_t(way), std::memory_order_release);
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

}  // namespace torture
