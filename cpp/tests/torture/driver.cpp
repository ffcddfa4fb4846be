// SPDX-License-Identifier: Apache-2.0
#include "driver.hpp"

#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "checks.hpp"
#include "ops.hpp"

namespace torture {
namespace {

constexpr double kPatience = 30;  // for workers that shall pause or end

double now_s() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

}  // namespace

Driver::Driver(Shared& shared, const Options& options, std::uint64_t seed)
    : shared_(shared),
      options_(options),
      nursery_(shared, options),
      planner_(shared, options, seed),
      rng_(seed + 1),
      began_(now_s()) {}

double Driver::seconds() const { return now_s() - began_; }

bool Driver::over() const {
  return shared_.violations.load(std::memory_order_acquire) ||
         nursery_.deaths.kills >= options_.kills ||
         (options_.seconds > 0 && seconds() >= options_.seconds);
}

void Driver::run() {
  while (!over()) {
    round(planner_.shape());
    rounds++;
  }
  if (options_.progress) tell();
}

void Driver::round(const Shape& shape) {
  name_ = "torture-" + std::to_string(getpid()) + "-" + std::to_string(rounds);
  shared_.ending = shared_.opened = 0;
  drains_ = rng_.percent(4);
  hot_ = rng_.percent(30);
  const std::uint64_t last = nursery_.deaths.kills + options_.round_kills;
  std::uint64_t next_check = nursery_.deaths.kills + options_.round_kills / 3;
  while (!over() && nursery_.deaths.kills < last) {
    fill_places(shape);
    kill_some();
    if (rng_.percent(3)) busy_devices();
    for (const unsigned place : nursery_.collect(2)) devices_.died(shared_.workers[place]);
    devices_.write();
    if (nursery_.deaths.kills >= next_check && !drains_) {
      check_paused(shape);
      next_check = nursery_.deaths.kills + options_.round_kills / 3;
    }
    if (options_.progress && seconds() - told_ > 5) tell();
  }
  if (!shared_.violations) check_end(shape);
  if (!shared_.violations) remove(shape);
  if (shared_.violations) keep();
}

// Removers may die, too: the next one finishes.
void Driver::remove(const Shape& shape) {
  for (int i = 0; i < 2; i++) {
    nursery_.start(0, planner_.remover(nursery_.deaths), shape, name_);
    const double limit = now_s() + kPatience;
    while (nursery_.living() && now_s() < limit) nursery_.collect(5);
    nursery_.kill_all();
  }
  const int rc = kvshm_remove(name_.c_str(), nullptr, 0);
  if (rc && rc != -ENOENT)
    violation(shared_, "remove: %s (%s)", kvshm_strerror(rc), kvshm_last_error());
}

void Driver::fill_places(const Shape& shape) {
  for (unsigned i = 0; i < options_.workers; i++)
    if (!nursery_.alive(i)) {
      Plan p = planner_.next(shape, nursery_.deaths, !shared_.opened);
      p.device = drains_ && rng_.percent(2);
      p.hot = hot_ && rng_.percent(85);
      if (p.hot && !p.favourite && rng_.percent(60)) {
        constexpr std::uint8_t kMeet[] = {kOp_allocate, kOp_share, kOp_evict, kOp_abort_fill,
                                          kOp_acquire};
        p.favourite = kMeet[rng_.below(5)];
      }
      nursery_.start(i, p, shape, name_);
    }
}

// From outside, at any time: also while it starts, or sleeps in the kernel.
void Driver::kill_some() {
  if (options_.fault.empty() && rng_.percent(5)) nursery_.kill(rng_.below(options_.workers));
}

// Rings of some slots go on writing after their process's death, until the next call.
void Driver::busy_devices() {
  idle_devices();
  if (rng_.percent(40)) return;
  std::vector<unsigned> slots;
  for (std::uint32_t n = rng_.between(1, 4); n; n--)
    slots.push_back(rng_.below(options_.workers + 2));
  devices_.busy(name_, slots);
  shared_.devices = devices_.slots();
}

void Driver::idle_devices() {
  shared_.devices = 0;
  devices_.idle();
}

// True when every worker that lives has stopped between two operations.
bool Driver::wait_paused(std::uint32_t pause) {
  for (const double limit = now_s() + kPatience; now_s() < limit;) {
    bool all = true;
    for (unsigned i = 0; i < options_.workers; i++)
      all = all && (!nursery_.alive(i) || shared_.workers[i].acked[0].load() == pause);
    if (all) return true;
    nursery_.collect(1);
  }
  for (unsigned i = 0; i < options_.workers; i++)
    if (nursery_.alive(i) && shared_.workers[i].acked[0].load() != pause)
      violation(shared_, "worker %u does not come to the end of an operation (%u)", i,
                unsigned(shared_.workers[i].op.load()));
  return false;
}

void Driver::check_paused(const Shape& shape) {
  idle_devices();
  const std::uint32_t pause = ++pauses_ * 2 - 1;
  shared_.pause.store(pause, std::memory_order_release);
  if (wait_paused(pause)) {
    // The library's helper threads go on: what they are half-way through is given a moment.
    std::string wrong;
    for (int attempt = 0; attempt < 4; attempt++) {
      nursery_.collect(attempt * 20);
      wrong = check_quiet(name_, shape, false);
      if (wrong.empty()) break;
    }
    checks++;
    if (!wrong.empty()) violation(shared_, "paused, %s: %s", shape.name, wrong.c_str());
  }
  shared_.pause.store(pause + 1, std::memory_order_release);
}

// All die at once, or all leave in order.
void Driver::check_end(const Shape& shape) {
  idle_devices();
  if (rng_.percent(30)) {
    shared_.ending = 1;
    const double limit = now_s() + kPatience;
    while (nursery_.living() && now_s() < limit) nursery_.collect(5);
    if (nursery_.living()) violation(shared_, "%u workers do not end", nursery_.living());
  }
  nursery_.kill_all();
  if (shared_.violations) return;
  if (drains_) {  // two seconds after a death was seen
    check_quiet(name_, shape, false);
    usleep(2200000);
  }
  const std::string wrong = check_quiet(name_, shape, true);
  checks++;
  if (!wrong.empty()) violation(shared_, "at rest, %s: %s", shape.name, wrong.c_str());
}

void Driver::keep() {
  nursery_.stop_all();
  usleep(20000);
  if (options_.control.empty() && options_.fault.empty()) {
    kept = name_ + ".kept";
    const std::string from = "/dev/shm/kvshm." + name_, to = "/dev/shm/kvshm." + kept;
    if (std::rename(from.c_str(), to.c_str())) kept.clear();
  }
  nursery_.kill_all();
  if (kept.empty()) kvshm_remove(name_.c_str(), nullptr, 1);
}

void Driver::tell() {
  told_ = seconds();
  std::fprintf(stderr, "%7.1f s  %llu of %llu kills, %llu rounds, %u violations\n", told_,
               (unsigned long long)nursery_.deaths.kills, (unsigned long long)options_.kills,
               (unsigned long long)rounds, shared_.violations.load());
}

}  // namespace torture
