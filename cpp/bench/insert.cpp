// SPDX-License-Identifier: Apache-2.0
// insert: what a new block costs, keys given: allocate, register, release; without and with
// evictions. Requests are chains, given back as one lease, as an engine does it.
#include "arena.hpp"

namespace bench {
namespace {

struct Costs {
  std::vector<double> all, allocate, enter, give_back;
};

kvshm_stats own(kvshm_arena* a) {
  kvshm_stats s;
  s.size = sizeof s;
  must(kvshm_get_own_stats(a, &s), "stats");
  return s;
}

}  // namespace

int insert(const Args& args) {
  use_cpu(args);
  kvshm_arena* a = attach_arena(args);
  const std::uint64_t blocks = args.number("blocks"), seed = args.number("order", 2);
  const auto n = std::uint32_t(args.number("request", 64));
  std::uint64_t next = 0;  // keys that were never used
  std::vector<kvshm_handle> h(n);
  std::vector<std::uint8_t> results(n);

  // Made beforehand, so that two processes meet in the arena all the time.
  constexpr std::uint32_t kAhead = 4096;
  std::vector<Key> made_keys;
  std::uint32_t used = kAhead;
  auto keys_ahead = [&] {
    made_keys = make_keys(seed, next, std::uint64_t{n} * kAhead);
    next += made_keys.size();
    used = 0;
  };
  auto request = [&](Costs* costs) {
    if (used == kAhead) keys_ahead();
    const Key* keys = made_keys.data() + std::size_t{used++} * n;
    kvshm_lease lease = 0;
    const std::uint64_t t0 = now_ns();
    int rc = kvshm_allocate(a, n, keys[0].api(), nullptr, h.data(), nullptr, nullptr);
    const std::uint64_t t1 = now_ns();
    must(rc, "allocate");
    const std::int64_t done =
        kvshm_register(a, h.data(), n, nullptr, KVSHM_ALLOW, h.data(), results.data());
    const std::uint64_t t2 = now_ns();
    if (must(done, "register") != n) die("registered %lld of %u", (long long)done, n);
    must(kvshm_lease_make(a, h.data(), n, 0, &lease), "lease");
    must(kvshm_release(a, lease), "release");
    const std::uint64_t t3 = now_ns();
    if (!costs) return;
    costs->all.push_back(double(t3 - t0) / n);
    costs->allocate.push_back(double(t1 - t0) / n);
    costs->enter.push_back(double(t2 - t1) / n);
    costs->give_back.push_back(double(t3 - t2) / n);
  };
  // Once through the arena: page tables and private counts are there, the rest is steady state.
  must(kvshm_clear(a), "clear");
  for (std::uint64_t i = 0; i + n <= blocks; i += n) request(nullptr);
  bool full = true;

  Line facts;
  add_pages(facts, a);
  return serve(facts, [&](const Order& order, Line& out) {
    const bool evict = order.word == "evict";
    if (!evict) {
      must(kvshm_clear(a), "clear");
      full = false;
    }
    while (evict && !full) {  // fill up untimed
      const std::uint64_t before = own(a).evicted_total;
      for (unsigned i = 0; i < 64; i++) request(nullptr);
      full = own(a).evicted_total - before >= 64 * n;
    }
    keys_ahead();
    const kvshm_stats before = own(a);
    Costs costs;
    std::uint64_t room = evict ? kAhead : std::min<std::uint64_t>(kAhead, blocks / n);
    const std::uint64_t end = now_ns() + order.number * 1000000;
    while (now_ns() < end && room-- > 0) request(&costs);
    const kvshm_stats after = own(a);
    const auto evicted = after.evicted_total - before.evicted_total;
    const auto made = double(costs.all.size()) * n;
    if (evict ? double(evicted) < 0.95 * made : evicted)
      die("%g evictions of %g", double(evicted), made);
    double mean = 0;
    for (double v : costs.all) mean += v / double(costs.all.size());
    out.add("ns", median(costs.all)).add("mean_ns", mean);
    out.add("p99_ns", quantile(costs.all, 0.99));
    out.add("allocate_ns", median(costs.allocate)).add("register_ns", median(costs.enter));
    out.add("release_ns", median(costs.give_back));
    out.add("steps_per_eviction",
            evicted ? double(after.evict_steps_total - before.evict_steps_total) / double(evicted)
                    : 0.0);
  });
}

}  // namespace bench
