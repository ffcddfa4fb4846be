// SPDX-License-Identifier: Apache-2.0
// Paged KV of an engine in host memory: the table of runs, copies by it, and the end of a store.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support.hpp"

using namespace kvshm_test;

namespace {

using Runs = std::vector<kvshm_run>;

std::int64_t prepare(Runs& runs, std::uint32_t rows, std::uint64_t slice, std::uint32_t* bad) {
  return kvshm_pages_prepare(runs.data(), std::uint32_t(runs.size()), rows, slice, bad);
}

// 8 rows of two layers: bytes [0, 96) and [96, 160) of a slice; a gap between rows and layers.
class Paged : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kRows = 8;
  Paged() : pool({.blocks = 8, .block_bytes = 512}), memory(4096) {
    for (std::size_t i = 0; i < memory.size(); i++) memory[i] = std::uint8_t(i * 7 + i / 256);
    runs = {{at(0), 128, 96, 0}, {at(1100), 72, 64, 96}};
    table = KVSHM_PAGES_INIT;
    table.runs = runs.data();
    table.nruns = 2;
    table.rows = kRows;
    table.slice_bytes = 192;
  }
  std::uint64_t at(std::size_t i) { return reinterpret_cast<std::uint64_t>(memory.data() + i); }
  std::vector<std::uint8_t> row(std::uint32_t r) {
    std::vector<std::uint8_t> out;
    for (const kvshm_run& x : runs) {
      const auto* p = reinterpret_cast<const std::uint8_t*>(x.address + r * x.stride);
      out.insert(out.end(), p, p + x.bytes);
    }
    return out;
  }
  std::vector<std::uint8_t> slice(kvshm_handle h, std::uint32_t part) {
    const auto* p = static_cast<const std::uint8_t*>(kvshm_block_data(pool.a, h.id)) + part * 192;
    return {p, p + 160};
  }
  handles_t allocate(const keys_t& keys, std::uint32_t parts) {
    handles_t h(keys.size());
    kvshm_fill_options o = KVSHM_FILL_OPTIONS_INIT;
    o.parts = parts;
    EXPECT_EQ(
        kvshm_allocate(pool.a, std::uint32_t(h.size()), raw(keys), &o, h.data(), nullptr, nullptr),
        0);
    return h;
  }

  Pool pool;
  std::vector<std::uint8_t> memory;
  Runs runs;
  kvshm_pages table;
};

TEST(PagesTable, JoinsNeighboursInRowsAndSlice) {
  Runs r = {{1064, 256, 64, 64}, {1000, 256, 64, 0}, {1128, 256, 32, 128}, {8000, 64, 32, 160}};
  std::uint32_t bad = 7;
  ASSERT_EQ(prepare(r, 10, 192, &bad), 2) << kvshm_last_error();
  EXPECT_EQ(bad, KVSHM_NONE);
  EXPECT_EQ(r[0].address, 1000u);
  EXPECT_EQ(r[0].bytes, 160u);
  EXPECT_EQ(r[1].offset, 160u);
}

TEST(PagesTable, NeighboursOfOneSideOnlyStayApart) {
  Runs gap = {{1000, 256, 64, 0}, {1064, 256, 64, 128}};
  EXPECT_EQ(prepare(gap, 2, 192, nullptr), 2);
  Runs stride = {{1000, 64, 64, 0}, {1064, 128, 64, 64}};
  EXPECT_EQ(prepare(stride, 1, 128, nullptr), 2);
}

TEST(PagesTable, RefusesWhatIsSenseless) {
  const struct {
    Runs runs;
    int code;
    std::uint32_t bad;
    const char* text;
  } cases[] = {
      {{}, -EINVAL, KVSHM_NONE, "no runs"},
      {{{1000, 64, 32, 0}, {0, 64, 32, 32}}, -EINVAL, 1, "without an address"},
      {{{1000, 64, 0, 0}}, -EINVAL, 0, "of no bytes"},
      {{{1000, 63, 64, 0}}, -EINVAL, 0, "its rows overlap"},
      {{{1000, 64, 64, 65}}, -ERANGE, 0, "beyond the slice"},
      {{{1000, 64, 64, ~0ull}}, -ERANGE, 0, "beyond the slice"},
      {{{~0ull - 100, 64, 64, 0}}, -ERANGE, 0, "address space"},
      {{{1000, 1ull << 63, 64, 0}}, -ERANGE, 0, "address space"},
      {{{1000, 64, 32, 0}, {5000, 64, 32, 31}}, -EINVAL, 1, "overlap in the slice"},
      {{{1000, 64, 32, 0}, {1031, 64, 32, 32}}, -EINVAL, 1, "overlap in the rows"},
      // The second row of the one, the first of the other.
      {{{1000, 64, 32, 0}, {1070, 64, 32, 32}}, -EINVAL, 1, "overlap in the rows"},
      // Round the end of the stride: the tail of a row over the head of the next.
      {{{1000, 64, 32, 0}, {1033, 64, 32, 32}}, -EINVAL, 1, "overlap in the rows"},
      {{{1000, 64, 16, 0}, {1020, 128, 16, 32}}, -EINVAL, 1, "mix strides"},
  };
  for (const auto& c : cases) {
    Runs r = c.runs;
    std::uint32_t bad = 99;
    EXPECT_EQ(prepare(r, 4, 128, &bad), c.code) << c.text;
    EXPECT_NE(std::strstr(kvshm_last_error(), c.text), nullptr) << kvshm_last_error();
    EXPECT_EQ(bad, c.bad) << c.text;
    EXPECT_TRUE(r.empty() || !std::memcmp(r.data(), c.runs.data(), r.size() * sizeof(kvshm_run)))
        << "changed";
  }
}

TEST(PagesTable, RunsOfASingleRowOverlap) {
  Runs r = {{1000, 0, 32, 0}, {5000, 0, 32, 32}, {1031, 0, 32, 64}};
  std::uint32_t bad = 9;
  EXPECT_EQ(prepare(r, 1, 128, &bad), -EINVAL);
  EXPECT_EQ(bad, 2u);
  r[2].address = 1032;
  EXPECT_EQ(prepare(r, 1, 128, &bad), 3);
}

TEST(PagesTable, ManyInterleavedRunsAreApart) {
  Runs r;
  for (std::uint64_t i = 0; i < 1000; i++) r.push_back({1 << 20 | i * 100, 100000, 90, i * 90});
  EXPECT_EQ(prepare(r, 1 << 20, 90000, nullptr), 1000) << kvshm_last_error();
  r[500].bytes = 101;
  r[500].offset = 90000;
  EXPECT_EQ(prepare(r, 1 << 20, 91000, nullptr), -EINVAL);
}

TEST(PagesTable, LooksAtTheMemory) {
  auto* p = static_cast<char*>(
      mmap(nullptr, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(p, MAP_FAILED);
  ASSERT_EQ(mprotect(p + 4096, 4096, PROT_READ), 0);
  ASSERT_EQ(munmap(p + 3 * 4096, 4096), 0);
  Runs r = {{reinterpret_cast<std::uint64_t>(p), 4096, 64, 0}};
  kvshm_pages t = KVSHM_PAGES_INIT;
  t.runs = r.data(), t.nruns = 1, t.slice_bytes = 64;
  std::uint32_t bad = 9;
  t.rows = 1;
  EXPECT_EQ(kvshm_pages_check(&t, 1, &bad), 0) << kvshm_last_error();
  t.rows = 3;
  EXPECT_EQ(kvshm_pages_check(&t, 0, &bad), 0);
  EXPECT_EQ(kvshm_pages_check(&t, 1, &bad), -EACCES);
  t.rows = 4;
  EXPECT_EQ(kvshm_pages_check(&t, 0, &bad), -EFAULT);
  EXPECT_EQ(bad, 0u);
  munmap(p, 3 * 4096);
  t.rows = 1;
  EXPECT_EQ(kvshm_pages_check(&t, 0, &bad), -EFAULT);
}

TEST_F(Paged, ThereAndBack) {
  const keys_t keys = keys_of(1, 3);
  const handles_t h = allocate(keys, 1);
  const std::uint32_t from[] = {5, 0, 7};
  std::int32_t codes[3] = {9, 9, 9};
  const std::uint64_t before = own_stats(pool.a).copy_in_bytes_total;
  ASSERT_EQ(kvshm_pages_store(pool.a, &table, h.data(), from, 3, 0, codes), 3)
      << kvshm_last_error();
  EXPECT_EQ(own_stats(pool.a).copy_in_bytes_total - before, 3 * 160u);
  for (int i = 0; i < 3; i++) EXPECT_EQ(slice(h[i], 0), row(from[i])) << i;
  for (int i = 0; i < 3; i++) EXPECT_FALSE(present(pool.a, keys[i])) << "before the finish";
  ASSERT_EQ(kvshm_pages_finish(pool.a, h.data(), 3, 0, codes), 3);
  for (int i = 0; i < 3; i++) EXPECT_EQ(codes[i], 0);
  for (int i = 0; i < 3; i++) EXPECT_EQ(block(pool.a, h[i].id).own_holds, 0u) << "given back";

  std::uint32_t ids[3];
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(keys), 3, ids, &lease), 3);
  const std::vector<std::uint8_t> was = memory;
  const std::vector<std::uint8_t> want[3] = {row(5), row(0), row(7)};
  const std::uint32_t to[] = {1, 2, 3};
  ASSERT_EQ(kvshm_pages_load(pool.a, &table, h.data(), to, 3, 0, codes), 3) << kvshm_last_error();
  for (int i = 0; i < 3; i++) EXPECT_EQ(row(to[i]), want[i]) << i;
  for (std::size_t i = 0; i < memory.size(); i++) {  // and not a byte beside them
    const bool inside = (i < 1024 && i / 128 >= 1 && i / 128 <= 3 && i % 128 < 96) ||
                        (i >= 1172 && i < 1388 && (i - 1100) % 72 < 64);
    if (!inside) {
      ASSERT_EQ(memory[i], was[i]) << i;
    }
  }
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST_F(Paged, PartsOfTwoMembers) {
  const keys_t keys = keys_of(1, 2);
  const handles_t h = allocate(keys, 2);
  kvshm_arena* b = pool.another();
  for (const auto& x : h) ASSERT_EQ(kvshm_fill_join(b, x), 0);
  const std::uint32_t from[] = {3, 4}, other[] = {6, 1};
  std::int32_t codes[2], codes_b[2];
  ASSERT_EQ(kvshm_pages_store(pool.a, &table, h.data(), from, 2, 0, codes), 2);
  ASSERT_EQ(kvshm_pages_store(b, &table, h.data(), other, 2, 1, codes_b), 2);
  ASSERT_EQ(kvshm_pages_finish(pool.a, h.data(), 2, 0, codes), 2);
  EXPECT_EQ(codes[0], KVSHM_PAGES_WAITS);
  EXPECT_EQ(codes[1], KVSHM_PAGES_WAITS);
  EXPECT_FALSE(present(pool.a, keys[0]));
  ASSERT_EQ(kvshm_pages_finish(b, h.data(), 2, 1, codes_b), 2);
  EXPECT_EQ(codes_b[0], 0);
  EXPECT_TRUE(present(pool.a, keys[0]) && present(pool.a, keys[1]));
  EXPECT_EQ(slice(h[1], 0), row(4));
  EXPECT_EQ(slice(h[1], 1), row(1));
  EXPECT_EQ(broken(pool.a), "");
}

// The bytes of the one who began the part are the ones that count, however the other ends.
TEST_F(Paged, APartBegunByAnotherNeverArrivesThroughMe) {
  const keys_t keys = keys_of(1, 1);
  const handles_t h = allocate(keys, 1);
  kvshm_arena* b = pool.another();
  ASSERT_EQ(kvshm_fill_join(b, h[0]), 0);
  ASSERT_EQ(kvshm_fill_begin(pool.a, h[0], 0), 0);  // and writes, slowly
  const std::uint32_t from[] = {2};
  std::int32_t code = 0;
  EXPECT_EQ(kvshm_pages_store(b, &table, h.data(), from, 1, 0, &code), 0);
  EXPECT_EQ(code, -KVSHM_EPART);
  EXPECT_NE(slice(h[0], 0), row(2));
  EXPECT_EQ(kvshm_pages_finish(b, h.data(), 1, 0, &code), 0);
  EXPECT_EQ(code, -KVSHM_EPART);
  EXPECT_EQ(block(pool.a, h[0].id).arrived, 0u);
  EXPECT_FALSE(present(pool.a, keys[0]));
  EXPECT_EQ(abort_fills(pool.a, h), 0);
  EXPECT_EQ(broken(pool.a), "");
}

// Begun by another, who is writing: what was never stored does not arrive through me either.
TEST_F(Paged, WhatWasNotStoredDoesNotArrive) {
  const handles_t h = allocate(keys_of(1, 1), 1);
  kvshm_arena* b = pool.another();
  ASSERT_EQ(kvshm_fill_join(b, h[0]), 0);
  ASSERT_EQ(kvshm_fill_begin(pool.a, h[0], 0), 0);
  std::int32_t code = 1;
  EXPECT_EQ(kvshm_pages_finish(b, h.data(), 1, 0, &code), 0);
  EXPECT_EQ(code, -EINVAL);
  EXPECT_EQ(block(pool.a, h[0].id).arrived, 0u);
  EXPECT_EQ(abort_fills(pool.a, h), 0);
}

// A batch that goes past the caches, in pieces of any size at any address.
TEST(PagesCopy, OddPiecesOfALargeBatch) {
  Pool pool({.blocks = 4, .block_bytes = 1 << 19});
  constexpr std::uint32_t kRows = 3;
  Runs runs;
  std::uint64_t slice = 0, room = 0;
  for (std::uint64_t i = 0; i < 80; i++) {
    const std::uint64_t bytes = i % 2 ? 60 + i * 5 : 1000 + i * 137;  // short ones at the end, too
    runs.push_back({room + 5, bytes + i % 7, bytes, slice});
    slice += bytes, room += kRows * (bytes + i % 7) + i % 64 + 8;
  }
  ASSERT_GT(2 * slice, 1u << 19);
  std::vector<std::uint8_t> memory(room + 8);
  for (std::size_t i = 0; i < memory.size(); i++) memory[i] = std::uint8_t(i * 7 + i / 256);
  for (auto& r : runs) r.address += reinterpret_cast<std::uint64_t>(memory.data());
  kvshm_pages t = KVSHM_PAGES_INIT;
  t.runs = runs.data(), t.nruns = std::uint32_t(runs.size()), t.rows = kRows, t.slice_bytes = slice;
  handles_t h(2);
  const keys_t keys = keys_of(1, 2);
  ASSERT_EQ(kvshm_allocate(pool.a, 2, raw(keys), nullptr, h.data(), nullptr, nullptr), 0);
  for (const auto& x : h) std::memset(kvshm_block_data(pool.a, x.id), 0xee, 1 << 19);
  const std::uint32_t from[] = {2, 0}, to[] = {0, 1};
  std::int32_t codes[2];
  std::vector<std::uint8_t> want = memory;
  ASSERT_EQ(kvshm_pages_store(pool.a, &t, h.data(), from, 2, 0, codes), 2) << kvshm_last_error();
  for (int i = 0; i < 2; i++) {
    const auto* b = static_cast<const std::uint8_t*>(kvshm_block_data(pool.a, h[i].id));
    for (const auto& r : runs) {
      const auto* source = reinterpret_cast<const std::uint8_t*>(r.address);
      ASSERT_EQ(std::memcmp(b + r.offset, source + from[i] * r.stride, r.bytes), 0) << r.offset;
      std::memcpy(want.data() + (source + to[i] * r.stride - memory.data()), b + r.offset, r.bytes);
    }
    EXPECT_EQ(b[slice], 0xee);
  }
  ASSERT_EQ(kvshm_pages_finish(pool.a, h.data(), 2, 0, codes), 2);
  std::uint32_t ids[2];
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(keys), 2, ids, &lease), 2);
  ASSERT_EQ(kvshm_pages_load(pool.a, &t, h.data(), to, 2, 0, codes), 2);
  EXPECT_EQ(memory, want) << "also not a byte beside them";
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
}

// Rows beyond 4 GiB, of which only the pages in use are there.
TEST_F(Paged, RowsFarApart) {
  constexpr std::uint64_t kStride = 5ull << 29;
  void* p = mmap(nullptr, 2 * kStride + 4096, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(p, MAP_FAILED);
  auto* far = static_cast<std::uint8_t*>(p);
  far[2 * kStride] = 7, far[2 * kStride + 511] = 8;
  Runs one = {{reinterpret_cast<std::uint64_t>(p), kStride, 512, 0}};
  kvshm_pages t = KVSHM_PAGES_INIT;
  t.runs = one.data(), t.nruns = 1, t.rows = 3, t.slice_bytes = 512;
  const handles_t h = allocate(keys_of(1, 1), 1);
  std::uint32_t row = 2;
  std::int32_t code = 0;
  ASSERT_EQ(kvshm_pages_store(pool.a, &t, h.data(), &row, 1, 0, &code), 1);
  const auto* stored = static_cast<const std::uint8_t*>(kvshm_block_data(pool.a, h[0].id));
  EXPECT_EQ(stored[0], 7);
  EXPECT_EQ(stored[511], 8);
  ASSERT_EQ(kvshm_pages_finish(pool.a, h.data(), 1, 0, &code), 1);
  std::uint32_t id;
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(keys_of(1, 1)), 1, &id, &lease), 1);
  far[2 * kStride] = 0;
  ASSERT_EQ(kvshm_pages_load(pool.a, &t, h.data(), &row, 1, 0, &code), 1);
  EXPECT_EQ(far[2 * kStride], 7);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  munmap(p, 2 * kStride + 4096);
}

// Nobody finds the blocks of an arena that is gone: nothing is published, all is given back.
TEST_F(Paged, AnArenaThatWasRemovedMeanwhile) {
  const handles_t h = allocate(keys_of(1, 2), 1);
  const std::uint32_t from[] = {1, 2};
  std::int32_t codes[2];
  ASSERT_EQ(kvshm_pages_store(pool.a, &table, h.data(), from, 2, 0, codes), 2);
  ASSERT_EQ(kvshm_remove(pool.name.c_str(), nullptr, 1), 0);
  EXPECT_EQ(kvshm_pages_finish(pool.a, h.data(), 2, 0, codes), 0);
  for (int code : codes) EXPECT_EQ(code, -ESTALE);
  for (const auto& x : h) EXPECT_EQ(block(pool.a, x.id).own_holds, 0u);
  EXPECT_EQ(kvshm_pages_store(pool.a, &table, h.data(), from, 2, 0, codes), -ESTALE);
}

TEST_F(Paged, OneWrongOfThree) {
  const keys_t keys = keys_of(1, 3);
  handles_t h = allocate(keys, 1);
  std::uint32_t from[] = {1, kRows, 2};
  std::int32_t codes[3];
  const std::uint64_t before = own_stats(pool.a).copy_in_bytes_total;
  EXPECT_EQ(kvshm_pages_store(pool.a, &table, h.data(), from, 3, 0, codes), 2);
  EXPECT_EQ(own_stats(pool.a).copy_in_bytes_total - before, 2 * 160u);
  EXPECT_EQ(codes[0], 0);
  EXPECT_EQ(codes[1], -ERANGE);
  EXPECT_EQ(codes[2], 0);
  EXPECT_EQ(block(pool.a, h[1].id).begun, 0u);
  EXPECT_EQ(kvshm_pages_finish(pool.a, h.data(), 3, 0, codes), 2);
  EXPECT_EQ(codes[1], -ERANGE);
  EXPECT_TRUE(present(pool.a, keys[0]) && present(pool.a, keys[2]));
  EXPECT_FALSE(present(pool.a, keys[1]));
  EXPECT_EQ(block(pool.a, h[1].id).state, unsigned(KVSHM_FREE));

  // Loads: one is not held, one has no life.
  std::uint32_t ids[1];
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(keys), 1, ids, &lease), 1);
  h[1].seq = 0;
  const std::vector<std::uint8_t> was = memory;
  const std::uint32_t to[] = {5, 6, 7};
  EXPECT_EQ(kvshm_pages_load(pool.a, &table, h.data(), to, 3, 0, codes), 1);
  EXPECT_EQ(codes[1], -EINVAL);
  EXPECT_EQ(codes[2], -KVSHM_ENOTMINE);
  EXPECT_EQ(row(5), row(1));
  EXPECT_EQ(std::memcmp(memory.data() + 6 * 128, was.data() + 6 * 128, 2 * 128), 0);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(kvshm_pages_load(pool.a, &table, h.data(), to, 1, 0, codes), 0);
  EXPECT_EQ(codes[0], -KVSHM_ENOTMINE);
}

TEST_F(Paged, ASenselessTableBeginsNothing) {
  const handles_t h = allocate(keys_of(1, 1), 2);
  const std::uint32_t from[] = {1};
  std::int32_t code = 0;
  const auto store = [&](const kvshm_pages& t, std::uint32_t part) {
    code = 99;
    const auto rc = kvshm_pages_store(pool.a, &t, h.data(), from, 1, part, &code);
    EXPECT_EQ(rc, code);
    return rc;
  };
  EXPECT_EQ(store(table, 2), -ERANGE);  // 3 slices of 192 are more than 512
  EXPECT_EQ(store(table, 99), -EINVAL);
  kvshm_pages t = table;
  t.slice_bytes = 159;
  EXPECT_EQ(store(t, 0), -ERANGE);
  t = table, t.slice_bytes = ~0ull;
  EXPECT_EQ(store(t, 0), -ERANGE);
  t = table, t.rows = 0;
  EXPECT_EQ(store(t, 0), -EINVAL);
  t = table, t.memory = 7;
  EXPECT_EQ(store(t, 0), -EINVAL);
  std::swap(runs[0], runs[1]);
  EXPECT_EQ(store(table, 0), -EINVAL);
  std::swap(runs[0], runs[1]);
  t = table, t.size = 8;
  EXPECT_EQ(kvshm_pages_store(pool.a, &t, h.data(), from, 1, 0, &code), -EINVAL);
  EXPECT_EQ(block(pool.a, h[0].id).begun, 0u);
  EXPECT_EQ(kvshm_pages_store(pool.a, &table, h.data(), from, 1, 1, &code), 1) << "it fits";
  EXPECT_EQ(abort_fills(pool.a, h), 0);
}

// Given back by another thread in the midst of a load, which a page fault stands for: the row is not
// called good.
kvshm_arena* fault_arena;
kvshm_handle fault_block;
char* fault_page;
int fault_drop = 1;
void give_back_at_fault(int) {
  if (mprotect(fault_page, 4096, PROT_READ | PROT_WRITE) != 0) _exit(3);
  fault_drop = kvshm_drop(fault_arena, &fault_block, 1);
}

TEST_F(Paged, ALoadWhoseBlockWentIsNotGood) {
  const keys_t keys = keys_of(1, 1);
  const kvshm_handle h = make_held(pool.a, keys[0]);
  void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  fault_arena = pool.a, fault_block = h, fault_page = static_cast<char*>(page);
  struct sigaction act = {}, before;
  act.sa_handler = give_back_at_fault;
  ASSERT_EQ(sigaction(SIGSEGV, &act, &before), 0);
  Runs one = {{reinterpret_cast<std::uint64_t>(page), 512, 512, 0}};
  kvshm_pages t = KVSHM_PAGES_INIT;
  t.runs = one.data(), t.nruns = 1, t.rows = 1, t.slice_bytes = 512;
  const std::uint32_t to[] = {0};
  std::int32_t code = 0;
  EXPECT_EQ(kvshm_pages_load(pool.a, &t, &h, to, 1, 0, &code), 0);
  sigaction(SIGSEGV, &before, nullptr);
  EXPECT_EQ(fault_drop, 0);
  EXPECT_EQ(code, -KVSHM_ENOTMINE);
  munmap(page, 4096);
}

}  // namespace
