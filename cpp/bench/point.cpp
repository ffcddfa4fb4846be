// SPDX-License-Identifier: Apache-2.0
// point: look-up + pin + release, one block at a time, in random order over all blocks.
#include "arena.hpp"

namespace bench {
namespace {

constexpr unsigned kBatch = 1000;

// A function of its own, with all that it uses in registers: a counter kept in memory is a store and
// a load that wait for each locked operation, and would be in the figure.
std::uint64_t batch(kvshm_arena* a, const Key* keys, std::uint64_t n, std::uint64_t at) {
  for (unsigned i = 0; i < kBatch; i++) {
    kvshm_handle h;
    if (int rc = kvshm_acquire(a, keys[at].bytes, 0, &h)) must(rc, "acquire");
    if (int rc = kvshm_drop(a, &h, 1)) must(rc, "drop");
    if (++at == n) at = 0;
  }
  return at;
}

}  // namespace

int point(const Args& args) {
  use_cpu(args);
  kvshm_arena* a = attach_arena(args);
  const std::uint64_t n = args.number("blocks"), seed = args.number("seed", 1);
  std::vector<Key> keys = make_keys(seed, 0, n);
  warm_up(a, keys);
  // The order is laid out beforehand: reading it costs a stream, not another miss.
  const std::vector<std::uint32_t> order = shuffled(n, args.number("order", 7));
  for (std::uint64_t i = 0; i < n; i++) make_key(seed, order[i], keys[i].bytes);

  std::uint64_t at = 0;
  Line facts;
  add_pages(facts, a);
  return serve(facts, [&](const Order& order_ms, Line& out) {
    const std::uint64_t start = now_ns(), end = start + order_ms.number * 1000000;
    std::vector<double> batches;
    std::uint64_t last = start;
    while (last < end) {
      at = batch(a, keys.data(), n, at);
      const std::uint64_t now = now_ns();
      batches.push_back(double(now - last) / kBatch);
      last = now;
    }
    const double all = double(batches.size()) * kBatch;
    out.add("ns", median(batches)).add("p99_ns", quantile(batches, 0.99));
    out.add("per_second", all * 1e9 / double(last - start));
  });
}

}  // namespace bench
