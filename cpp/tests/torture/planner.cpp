// SPDX-License-Identifier: Apache-2.0
#include "planner.hpp"

#include <string_view>
#include <vector>

#include "faults.hpp"
#include "ops.hpp"

namespace torture {

Planner::Planner(Shared& shared, const Options& options, std::uint64_t seed)
    : shared_(shared), options_(options), rng_(seed) {}

const Shape& Planner::shape() {
  if (const Shape* only = shape_named(options_.shape)) return *only;
  unsigned total = 0;
  for (const Shape& s : shapes()) total += s.weight;
  std::uint32_t at = rng_.below(total);
  for (const Shape& s : shapes()) {
    if (at < s.weight) return s;
    at -= s.weight;
  }
  return shapes()[0];
}

// One of those with the fewest deaths, of some; only of those whose names begin so.
std::uint32_t Planner::rare_step(const Deaths& deaths, const char* prefix) {
  std::vector<std::uint32_t> known;
  for (std::uint32_t i = 0; i < kMaxSteps; i++) {
    const std::string_view name = kvshm::kStepNames[i];
    // attach.clear: what a dead creator left is cleared away
    const std::string_view when = name == "attach.clear" ? "create." : name;
    if (prefix ? when.starts_with(prefix)
               : !when.starts_with("create.") && !when.starts_with("remove."))
      known.push_back(i);
  }
  if (known.empty()) return kNoStep;
  const auto some = [&] { return known[rng_.below(std::uint32_t(known.size()))]; };
  std::uint32_t best = some();
  for (int i = 0; i < 4; i++)
    if (const std::uint32_t other = some(); deaths.by_step[other] < deaths.by_step[best])
      best = other;
  return best;
}

// The operation that came by this step most often, for its runs.
std::uint8_t Planner::operation_for(std::uint32_t step) const {
  std::uint8_t best = 0;
  double most = 0;
  for (unsigned op = 1; op < kOps; op++) {
    const double runs = double(shared_.runs[op].load(std::memory_order_relaxed)) + 50;
    const double rate = shared_.passes[step][op].load(std::memory_order_relaxed) / runs;
    if (rate > most) {
      most = rate;
      best = std::uint8_t(op);
    }
  }
  return best;
}

Plan Planner::remover(const Deaths& deaths) {
  Plan p;
  p.seed = rng_.next();
  p.removes = p.before_open = true;
  p.alarm_us = 1000000;
  p.step = rare_step(deaths, "remove.");
  p.count = p.step == kNoStep ? rng_.between(1, 4) : 1;
  return p;
}

Plan Planner::next(const Shape& shape, const Deaths& deaths, bool fresh) {
  Plan p;
  p.life = ++lives_;
  p.seed = rng_.next();
  p.jitter = rng_.percent(30) ? 0 : rng_.percent(50) ? 4 : 25;
  if (shape.blocks > 256 && p.jitter) p.jitter = 1;  // there one call has many thousand steps
  p.threads = rng_.percent(10) ? 2 : 1;
  if (options_.threads) p.threads = std::uint8_t(options_.threads);
  p.helper = rng_.percent(5);
  p.fault = std::uint8_t(fault_named(options_.fault));
  if (p.fault) {  // no other end comes before it; who goes on after it ends in order
    p.closes = options_.fault == "said" || rng_.percent(50);
    p.threads = p.closes ? 1 : 2;
    return p;
  }
  if (fresh ? rng_.percent(10) : rng_.percent(1)) {
    static const char* const calls[] = {"create.size", "attach.map", "attach.counts", "slot.keep"};
    p.fails = calls[fresh ? 0 : rng_.between(1, 3)];
  }
  const std::uint32_t kind = rng_.below(100);
  if (kind < 3) {  // to the end of the round, if the driver lets it
    p.closes = rng_.percent(50);
    if (p.closes) p.threads = 1;
    return p;
  }
  p.alarm_us = 50000 + 1000 * rng_.spread(200);  // whatever else was planned
  if (kind < 35) {
    p.alarm_us = 20 + rng_.spread(100000);
  } else if (kind < 65) {
    p.count = rng_.spread(250);
    p.before_open = rng_.percent(25);
  } else {
    p.step = rare_step(deaths, fresh ? "create." : nullptr);
    p.count = fresh ? 1 : rng_.between(1, 3);
    p.before_open = true;
    if (p.step != kNoStep) p.favourite = operation_for(p.step);
  }
  return p;
}

}  // namespace torture
