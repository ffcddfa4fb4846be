// SPDX-License-Identifier: Apache-2.0
#include "arena.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

namespace bench {
namespace {

std::string directory;  // kept for the life of the process: options point to it

constexpr std::uint64_t kHuge = 2 << 20;

}  // namespace

kvshm_options options_of(const Args& args) {
  kvshm_options o = KVSHM_OPTIONS_INIT;
  directory = args.text("dir");
  if (!directory.empty()) o.dir = directory.c_str();
  o.flags = KVSHM_NO_HELPER;
  o.timeout_ms = 120000;  // creating 8 GiB of 4 KiB pages on a busy machine
  return o;
}

kvshm_arena* attach_arena(const Args& args) {
  const kvshm_options o = options_of(args);
  kvshm_arena* a = nullptr;
  must(kvshm_attach(&a, args.text("name").c_str(), &o), "attach");
  return a;
}

kvshm_info info_of(kvshm_arena* a) {
  kvshm_info info{};
  info.size = sizeof info;
  must(kvshm_get_info(a, &info), "info");
  return info;
}

Pages pages_of(kvshm_arena* a) {
  std::uint64_t n = 0;
  const auto at = std::uint64_t(kvshm_block_table(a, &n));
  Pages pages;
  unsigned long long kernel_page = 4, lo = 0, hi = 0, kb = 0;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> f(std::fopen("/proc/self/smaps", "re"),
                                                    std::fclose);
  if (!f) die("no /proc/self/smaps");
  char line[512];
  bool inside = false;
  while (std::fgets(line, sizeof line, f.get())) {
    if (std::sscanf(line, "%llx-%llx ", &lo, &hi) == 2) inside = false;
    // A mapping is shown in one piece per set of flags: metadata and data may be two.
    if (std::strstr(line, "/kvshm.") && lo < hi) inside = true;
    if (inside && std::sscanf(line, "Rss: %llu", &kb) == 1) pages.bytes += kb * 1024;
    if (inside && (std::sscanf(line, "ShmemPmdMapped: %llu", &kb) == 1 ||
                   std::sscanf(line, "FilePmdMapped: %llu", &kb) == 1))
      pages.huge_bytes += kb * 1024;
    if (inside && std::sscanf(line, "KernelPageSize: %llu", &kb) == 1 && lo <= at && at < hi)
      kernel_page = kb;
  }
  pages.page_bytes = kernel_page * 1024;
  if (pages.huge_bytes && pages.huge_bytes * 2 >= pages.bytes) pages.page_bytes = kHuge;
  return pages;
}

Line& add_pages(Line& line, kvshm_arena* a) {
  const Pages p = pages_of(a);
  return line.add("page_bytes", p.page_bytes)
      .add("mapped_bytes", p.bytes)
      .add("huge_bytes", p.huge_bytes);
}

void warm_up(kvshm_arena* a, const std::vector<Key>& keys) {
  constexpr std::size_t kBatch = 512;
  std::uint32_t ids[kBatch];
  for (std::size_t i = 0; i < keys.size(); i += kBatch) {
    const auto n = std::uint32_t(std::min(kBatch, keys.size() - i));
    kvshm_lease lease = 0;
    if (must(kvshm_match(a, keys[i].api(), n, ids, &lease), "match") != n)
      die("key %zu of %zu is not there", i, keys.size());
    must(kvshm_release(a, lease), "release");
  }
}

}  // namespace bench
