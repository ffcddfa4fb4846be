// SPDX-License-Identifier: Apache-2.0
// paged: an engine's rows, in no order, into blocks and back, by the table of kvshm_pages.h.
// runs=1,32: a row of the size of a block lies in so many pieces of one size, as far apart as the
// engine has rows. Beside them, each block as one piece: kvshm_copy_in and the loops of copy_loops.
#include <sys/mman.h>
#include <time.h>

#include <cstring>
#include <sstream>

#include "arena.hpp"
#include "copy_loops.hpp"

namespace bench {
namespace {

struct Engine {
  std::uint32_t rows;
  std::uint64_t size;
  char* memory;

  Engine(std::uint32_t n, std::uint64_t bytes) : rows(n), size(bytes) {
    void* p =
        mmap(nullptr, rows * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) die("no memory for an engine of %u rows", rows);
    madvise(p, rows * size, MADV_HUGEPAGE);
    memory = static_cast<char*>(std::memset(p, 0x5a, rows * size));
  }
  std::vector<kvshm_run> runs(std::uint64_t n) const {
    const auto at = reinterpret_cast<std::uint64_t>(memory);
    const std::uint64_t piece = size / n;
    if (!n || piece * n != size) die("a block is not %llu pieces of a size", (unsigned long long)n);
    std::vector<kvshm_run> out;
    for (std::uint64_t i = 0; i < n; i++)
      out.push_back({at + i * piece * rows, piece, piece, i * piece});
    return out;
  }
  kvshm_pages table(const std::vector<kvshm_run>& runs) const {
    kvshm_pages p = KVSHM_PAGES_INIT;
    p.runs = runs.data();
    p.nruns = std::uint32_t(runs.size());
    p.rows = rows;
    p.slice_bytes = (size + 63) / 64 * 64;
    return p;
  }
};

std::vector<std::vector<kvshm_run>> ways_of(const Engine& engine, const std::string& text) {
  std::vector<std::vector<kvshm_run>> out;
  std::istringstream in(text);
  for (std::string n; std::getline(in, n, ',');) out.push_back(engine.runs(std::stoull(n)));
  return out;
}

// Of this thread: what others take from its processor is not in it.
std::uint64_t cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return std::uint64_t(t.tv_sec) * 1000000000 + std::uint64_t(t.tv_nsec);
}

void all(std::int64_t rc, std::size_t n, const char* what) {
  if (must(rc, what) != std::int64_t(n)) die("%s: not all of %zu rows", what, n);
}

void by_loop(kvshm_arena* a, const CopyLoop& loop, const Engine& engine,
             const std::vector<kvshm_handle>& h, const std::vector<std::uint32_t>& rows,
             bool back) {
  for (std::size_t i = 0; i < h.size(); i++) {
    char* block = static_cast<char*>(kvshm_block_data(a, h[i].id));
    char* row = engine.memory + rows[i] * engine.size;
    loop.run(back ? row : block, back ? block : row, engine.size);
  }
}

}  // namespace

// Orders: copy_in; loop N, and back N: from blocks into rows; store N and load N: by the Nth of
// `runs`.
int paged(const Args& args) {
  use_cpu(args);
  kvshm_arena* a = attach_arena(args);
  const auto n = std::uint32_t(args.number("blocks"));
  const std::uint64_t size = args.number("row_bytes", info_of(a).block_bytes);
  const Engine engine(n + n / 2, size);  // a block never meets the same row soon
  const auto ways = ways_of(engine, args.text("runs", "1"));
  const std::vector<CopyLoop> loops = copy_loops();
  const std::vector<std::uint32_t> order = shuffled(engine.rows, 7);
  const std::vector<Key> keys = make_keys(args.number("seed", 1), 0, n);
  std::vector<kvshm_handle> h(n);
  std::vector<std::int32_t> codes(n);
  std::vector<std::uint32_t> rows(n);
  std::uint32_t row = 0;
  Line facts;
  add_pages(facts, a);
  std::string names, streams;
  for (const CopyLoop& loop : loops) {
    if (!names.empty()) names += ',';
    names += loop.name;
    streams += loop.streams ? "1" : "0";
  }
  facts.add("variant", kvshm_stream_copy_variant()).add("loops", names).add("streams", streams);
  return serve(facts, [&](const Order& wanted, Line& out) {
    for (auto& r : rows) r = order[row++ % engine.rows];
    must(kvshm_allocate(a, n, keys[0].api(), nullptr, h.data(), nullptr, nullptr), "allocate");
    const bool load = wanted.word == "load", store = wanted.word == "store";
    const kvshm_pages table = engine.table(ways.at(load || store ? wanted.number : 0));
    if (load)
      all(kvshm_register(a, h.data(), n, nullptr, KVSHM_ALLOW, nullptr, nullptr), n, "register");
    const std::uint64_t start = now_ns(), start_cpu = cpu_ns();
    if (load)
      all(kvshm_pages_load(a, &table, h.data(), rows.data(), n, 0, codes.data()), n, "load");
    else if (store)
      all(kvshm_pages_store(a, &table, h.data(), rows.data(), n, 0, codes.data()), n, "store");
    else if (wanted.word == "copy_in")
      for (std::uint32_t i = 0; i < n; i++)
        must(kvshm_copy_in(a, h[i], 0, engine.memory + rows[i] * size, size), "copy_in");
    else
      by_loop(a, loops.at(wanted.number), engine, h, rows, wanted.word == "back");
    const std::uint64_t took_cpu = cpu_ns() - start_cpu, took = now_ns() - start;
    out.add("gb_per_second", double(n * size) / double(took));
    out.add("gb_per_cpu_second", double(n * size) / double(took_cpu));
    must(kvshm_abort(a, h.data(), n), "give back");
    must(kvshm_evict(a, keys[0].api(), n), "evict");
  });
}

}  // namespace bench
