// SPDX-License-Identifier: Apache-2.0
// match: the longest prefix of a request's keys, held, then given back; requests in random order.
#include "arena.hpp"

namespace bench {

int match(const Args& args) {
  use_cpu(args);
  kvshm_arena* a = attach_arena(args);
  const auto request = std::uint32_t(args.number("request", 512));
  const std::uint64_t requests = args.number("blocks") / request;
  if (!requests) die("no request of %u keys in so few blocks", request);
  const std::vector<Key> keys = make_keys(args.number("seed", 1), 0, requests * request);
  warm_up(a, keys);
  const std::vector<std::uint32_t> order = shuffled(requests, args.number("order", 7));
  std::vector<std::uint32_t> ids(request);
  std::uint64_t at = 0;
  Line facts;
  add_pages(facts, a);
  return serve(facts, [&](const Order& order_ms, Line& out) {
    const std::uint64_t end = now_ns() + order_ms.number * 1000000;
    std::vector<double> found, given_back;
    for (std::uint64_t last = 0; last < end;) {
      const kvshm_key* wanted = keys[std::uint64_t(order[at]) * request].api();
      if (++at == requests) at = 0;
      kvshm_lease lease = 0;
      const std::uint64_t t0 = now_ns();
      const std::int64_t hits = kvshm_match(a, wanted, request, ids.data(), &lease);
      const std::uint64_t t1 = now_ns();
      must(kvshm_release(a, lease), "release");
      last = now_ns();
      if (hits != request) die("%lld of %u keys matched", (long long)hits, request);
      found.push_back(double(t1 - t0) / request);
      given_back.push_back(double(last - t1) / request);
    }
    out.add("ns", median(found)).add("release_ns", median(given_back));
    out.add("p99_ns", quantile(found, 0.99));
  });
}

}  // namespace bench
