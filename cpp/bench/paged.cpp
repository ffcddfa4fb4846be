// SPDX-License-Identifier: Apache-2.0
// paged: an engine's rows into blocks and back, by the table of kvshm_pages.h: 2 MiB in one run, in
// 32 of 64 KiB as of an engine that keeps its layers apart, or in 512 of 4 KiB as of one that keeps
// their heads apart. Beside them kvshm_copy_in and memcpy.
#include <sys/mman.h>

#include <cstring>

#include "arena.hpp"

namespace bench {
namespace {

constexpr std::uint32_t kRuns[] = {1, 32, 512};
enum : std::uint64_t { kCopyIn, kMemcpy, kStore, kLoad = kStore + 3 };  // of each of kRuns

struct Engine {
  std::uint32_t rows;
  std::uint64_t size;
  char* memory;
  std::vector<kvshm_run> runs[3];

  Engine(std::uint32_t n, std::uint64_t bytes) : rows(n), size(bytes) {
    void* p =
        mmap(nullptr, rows * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("no memory for an engine of %u rows", rows);
    madvise(p, rows * size, MADV_HUGEPAGE);
    memory = static_cast<char*>(std::memset(p, 0x5a, rows * size));
    const auto at = reinterpret_cast<std::uint64_t>(memory);
    for (int way = 0; way < 3; way++) {
      const std::uint64_t piece = size / kRuns[way];
      for (std::uint32_t i = 0; i < kRuns[way]; i++)
        runs[way].push_back({at + i * piece * rows, piece, piece, i * piece});
    }
  }
  kvshm_pages table(std::uint64_t way) const {
    kvshm_pages p = KVSHM_PAGES_INIT;
    p.runs = runs[way].data();
    p.nruns = kRuns[way];
    p.rows = rows;
    p.slice_bytes = size;
    return p;
  }
};

void all(std::int64_t rc, std::size_t n, const char* what) {
  if (must(rc, what) != std::int64_t(n)) die("%s: not all of %zu rows", what, n);
}

}  // namespace

int paged(const Args& args) {
  use_cpu(args);
  kvshm_arena* a = attach_arena(args);
  const auto n = std::uint32_t(args.number("blocks"));
  const std::uint64_t size = info_of(a).block_bytes;
  const Engine engine(n + 3, size);  // a block never meets the same row soon
  const std::vector<Key> keys = make_keys(args.number("seed", 1), 0, n);
  std::vector<kvshm_handle> h(n);
  std::vector<std::int32_t> codes(n);
  std::vector<std::uint32_t> rows(n);
  std::uint32_t row = 0;
  Line facts;
  add_pages(facts, a);
  return serve(facts, [&](const Order& order, Line& out) {
    for (auto& r : rows) r = row++ % engine.rows;
    must(kvshm_allocate(a, n, keys[0].api(), nullptr, h.data(), nullptr, nullptr), "allocate");
    const bool load = order.number >= kLoad;
    const bool paged = order.number >= kStore;
    const kvshm_pages table = engine.table(paged ? (order.number - kStore) % 3 : 0);
    if (load)
      all(kvshm_register(a, h.data(), n, nullptr, KVSHM_ALLOW, nullptr, nullptr), n, "register");
    const std::uint64_t start = now_ns();
    if (load)
      all(kvshm_pages_load(a, &table, h.data(), rows.data(), n, 0, codes.data()), n, "load");
    else if (paged)
      all(kvshm_pages_store(a, &table, h.data(), rows.data(), n, 0, codes.data()), n, "store");
    else
      for (std::uint32_t i = 0; i < n; i++) {
        const char* from = engine.memory + rows[i] * size;
        if (order.number == kCopyIn)
          must(kvshm_copy_in(a, h[i], 0, from, size), "copy_in");
        else
          std::memcpy(kvshm_block_data(a, h[i].id), from, size);
      }
    out.add("gb_per_second", double(n * size) / double(now_ns() - start));
    must(kvshm_abort(a, h.data(), n), "give back");
    must(kvshm_evict(a, keys[0].api(), n), "evict");
  });
}

}  // namespace bench
