// SPDX-License-Identifier: Apache-2.0
// attach: opening a populated arena of another process, and the first touch of all its pages.
#include <cstdio>
#include <memory>

#include "arena.hpp"

namespace bench {
namespace {

std::uint64_t page_table_bytes() {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> f(std::fopen("/proc/self/status", "re"),
                                                    std::fclose);
  char line[256];
  unsigned long long kb = 0;
  while (f && std::fgets(line, sizeof line, f.get()))
    if (std::sscanf(line, "VmPTE: %llu", &kb) == 1) break;
  return kb * 1024;
}

}  // namespace

int attach(const Args& args) {
  const std::uint64_t stride = args.number("stride", 4096);
  Line facts;
  return serve(facts, [&](const Order&, Line& out) {
    const std::uint64_t tables = page_table_bytes();
    const std::uint64_t t0 = now_ns();
    kvshm_arena* a = attach_arena(args);
    const std::uint64_t t1 = now_ns();
    const kvshm_info info = info_of(a);
    const auto* base = static_cast<const volatile char*>(kvshm_block_data(a, 0));
    if (!base) die("an arena without data");
    base -= info.data_offset;
    const std::uint64_t t2 = now_ns();
    for (std::uint64_t at = 0; at < info.bytes; at += stride) (void)base[at];
    const std::uint64_t t3 = now_ns();
    out.add("attach_ms", double(t1 - t0) / 1e6).add("touch_ms", double(t3 - t2) / 1e6);
    out.add("bytes", info.bytes).add("table_bytes", page_table_bytes() - tables);
    add_pages(out, a);
    must(kvshm_close(a, 10000), "close");
  });
}

}  // namespace bench
