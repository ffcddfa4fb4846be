// SPDX-License-Identifier: Apache-2.0
// victim, reaper, worker: what a killed process's holds cost those who live on.
#include <time.h>

#include "arena.hpp"

namespace bench {
namespace {

std::uint64_t cpu_ns() {  // of this process
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return std::uint64_t(t.tv_sec) * 1000000000u + std::uint64_t(t.tv_nsec);
}

}  // namespace

// Holds every block until it is killed.
int victim(const Args& args) {
  kvshm_arena* a = attach_arena(args);
  const std::uint64_t n = args.number("blocks");
  const std::vector<Key> keys = make_keys(args.number("seed", 1), 0, n);
  std::vector<std::uint32_t> ids(n);
  kvshm_lease lease = 0;
  const std::int64_t held =
      must(kvshm_match(a, keys[0].api(), std::uint32_t(n), ids.data(), &lease), "match");
  Line facts;
  facts.add("held", std::uint64_t(held));
  return serve(facts, [](const Order&, Line&) {});
}

// Gives back what dead processes held, when told to.
int reaper(const Args& args) {
  use_cpu(args);
  kvshm_arena* a = attach_arena(args);
  warm_up(a, make_keys(args.number("seed", 1), 0, args.number("blocks")));
  Line facts;
  return serve(facts, [&](const Order&, Line& out) {
    kvshm_reap_report report = KVSHM_REAP_REPORT_INIT;
    const std::uint64_t start = now_ns(), cpu = cpu_ns();
    must(kvshm_reap(a, &report), "reap");
    out.add("cpu", cpu_ns() - cpu);
    out.add("start", start).add("end", now_ns()).add("holds", report.holds);
    out.add("slots", std::uint64_t(report.slots_cleared));
  });
}

// Batches of 1000 look-ups with pin and release, each with its time.
int worker(const Args& args) {
  use_cpu(args);
  kvshm_arena* a = attach_arena(args);
  const std::uint64_t n = args.number("blocks"), seed = args.number("seed", 1);
  std::vector<Key> keys = make_keys(seed, 0, n);
  warm_up(a, keys);
  const std::vector<std::uint32_t> order = shuffled(n, args.number("order", 7));
  for (std::uint64_t i = 0; i < n; i++) make_key(seed, order[i], keys[i].bytes);
  std::uint64_t at = 0;
  Line facts;
  return serve(facts, [&](const Order& order_ms, Line& out) {
    std::vector<std::uint64_t> ends;
    ends.reserve(1 << 16);
    const std::uint64_t start = now_ns(), end = start + order_ms.number * 1000000;
    for (std::uint64_t now = start; now < end; ends.push_back(now)) {
      for (unsigned i = 0; i < 1000; i++) {
        kvshm_handle h;
        if (int rc = kvshm_acquire(a, keys[at].bytes, 0, &h)) must(rc, "acquire");
        if (int rc = kvshm_drop(a, &h, 1)) must(rc, "drop");
        if (++at == n) at = 0;
      }
      now = now_ns();
    }
    out.add("start", start).add("ends", ends);
  });
}

}  // namespace bench
