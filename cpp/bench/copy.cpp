// SPDX-License-Identifier: Apache-2.0
// copy: into blocks of an arena, from memory that no cache holds. read: in place, nothing copied.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "arena.hpp"
#include "copy_loops.hpp"

namespace bench {
namespace {

char* anonymous(std::size_t n) {
  void* p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) die("no memory for %zu bytes to copy from", n);
  madvise(p, n, MADV_HUGEPAGE);
  std::memset(p, 0x5a, n);
  return static_cast<char*>(p);
}

std::uint64_t copied(kvshm_arena* a) {
  kvshm_stats s;
  s.size = sizeof s;
  must(kvshm_get_own_stats(a, &s), "stats");
  return s.copy_in_bytes_total + s.copy_out_bytes_total;
}

}  // namespace

// Each round times the variant of the given number: 0 = kvshm_copy_in, then the loops.
int copy(const Args& args) {
  use_cpu(args);
  kvshm_arena* a = attach_arena(args);
  const kvshm_info info = info_of(a);
  const std::uint64_t size = info.block_bytes;
  std::vector<kvshm_handle> fills(args.number("blocks"));
  must(kvshm_allocate(a, std::uint32_t(fills.size()), nullptr, nullptr, fills.data(), nullptr,
                      nullptr),
       "allocate");
  for (const kvshm_handle& h : fills) {
    must(kvshm_fill_begin(a, h, 0), "begin");
    std::memset(kvshm_block_data(a, h.id), 1, size);
  }
  const std::uint64_t sources = fills.size() + 3;  // a block never meets the same source soon
  char* from = anonymous(sources * size);
  const std::vector<CopyLoop> loops = copy_loops();
  std::uint64_t at = 0, source = 0;
  Line facts;
  facts.add("variant", kvshm_stream_copy_variant());
  add_pages(facts, a);
  std::string names, streams;
  for (const CopyLoop& loop : loops) {
    if (!names.empty()) names += ',';
    names += loop.name;
    streams += loop.streams ? "1" : "0";
  }
  facts.add("loops", names).add("streams", streams);
  return serve(facts, [&](const Order& order, Line& out) {
    std::vector<double> rates;
    for (unsigned i = 0; i < 48; i++) {
      const kvshm_handle h = fills[at++ % fills.size()];
      const char* src = from + source++ % sources * size;
      const std::uint64_t start = now_ns();
      if (order.number == 0)
        must(kvshm_copy_in(a, h, 0, src, size), "copy_in");
      else
        loops.at(order.number - 1).run(static_cast<char*>(kvshm_block_data(a, h.id)), src, size);
      rates.push_back(double(size) / double(now_ns() - start));
    }
    out.add("gb_per_second", median(rates));
  });
}

int read_in_place(const Args& args) {
  kvshm_arena* a = attach_arena(args);
  const kvshm_info info = info_of(a);
  const auto n = std::uint32_t(args.number("blocks"));
  const std::vector<Key> keys = make_keys(args.number("seed", 1), 0, n);
  std::vector<std::uint32_t> ids(n);
  Line facts;
  return serve(facts, [&](const Order&, Line& out) {
    const std::uint64_t before = copied(a);
    kvshm_lease lease = 0;
    if (must(kvshm_match(a, keys[0].api(), n, ids.data(), &lease), "match") != n) die("a miss");
    std::uint64_t right = 0;
    for (std::uint32_t i = 0; i < n; i++) {
      const char* data = static_cast<const char*>(kvshm_block_data(a, ids[i]));
      for (std::uint64_t at = 0; at < info.block_bytes; at += sizeof(Key))
        right += std::memcmp(data + at, &keys[i], sizeof(Key)) == 0 ? sizeof(Key) : 0;
    }
    must(kvshm_release(a, lease), "release");
    if (right != n * info.block_bytes) die("bytes read in place are not those that were written");
    out.add("bytes_read", right).add("bytes_copied", copied(a) - before);
  });
}

}  // namespace bench
