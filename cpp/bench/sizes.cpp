// SPDX-License-Identifier: Apache-2.0
// sizes: private memory of a process that has used every block once.
#include <cstdio>
#include <memory>

#include "arena.hpp"

namespace bench {
namespace {

std::uint64_t anonymous_bytes() {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> f(std::fopen("/proc/self/smaps_rollup", "re"),
                                                    std::fclose);
  char line[256];
  unsigned long long kb = 0;
  while (f && std::fgets(line, sizeof line, f.get()))
    if (std::sscanf(line, "Anonymous: %llu", &kb) == 1) return kb * 1024;
  die("no /proc/self/smaps_rollup");
}

}  // namespace

int sizes(const Args& args) {
  const std::vector<Key> keys = make_keys(args.number("seed", 1), 0, args.number("blocks"));
  Line facts;
  return serve(facts, [&](const Order&, Line& out) {
    const std::uint64_t before = anonymous_bytes();
    kvshm_arena* a = attach_arena(args);
    warm_up(a, keys);
    out.add("anonymous_bytes", anonymous_bytes() - before);
    must(kvshm_close(a, 10000), "close");
  });
}

}  // namespace bench
