// SPDX-License-Identifier: Apache-2.0
// Paged KV of a CUDA device, on a driver without a GPU (tests/device/native/fake_cuda.c), whose
// device memory is the host's and whose copies are done when asked for. See cuda_test.cpp.
#include <dlfcn.h>
#include <sys/mman.h>

#include "support.hpp"

using namespace kvshm_test;

namespace {

class CudaPages : public ::testing::Test {
 protected:
  CudaPages() : pool({.blocks = 16, .block_bytes = 4096}), memory(16 * 4096) {
    for (std::size_t i = 0; i < memory.size(); i++) memory[i] = std::uint8_t(i * 31 + i / 512);
    for (std::uint64_t i = 0; i < 4; i++)  // four layers, 16 rows each
      runs[i] = {reinterpret_cast<std::uint64_t>(memory.data()) + i * 16384, 1024, 1000, i * 1000};
    table = KVSHM_PAGES_INIT;
    table.runs = runs, table.nruns = 4, table.rows = 16, table.slice_bytes = 4032;
    table.memory = KVSHM_MEMORY_CUDA;
  }
  void SetUp() override {
    lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib || !dlsym(lib, "fake_copies"))
      GTEST_SKIP() << "libcuda.so.1 is not the fake one: run it by ctest";
    load(reset, "fake_copies_reset");
    load(copies, "fake_copies");
    load(own_context, "fake_own_context");
    load(push, "cuCtxPushCurrent_v2");
    load(pop, "cuCtxPopCurrent_v2");
    load(init, "cuInit");
    load(current, "cuCtxGetCurrent");
    setenv("KVSHM_FAKE_CUDA_DEVICES", "1", 1);
    init(0);
    reset(0);
    h.resize(5);
    ASSERT_EQ(kvshm_allocate(pool.a, 5, raw(keys), nullptr, h.data(), nullptr, nullptr), 0);
  }
  template <class F>
  void load(F& f, const char* name) {
    f = reinterpret_cast<F>(dlsym(lib, name));
    ASSERT_NE(f, nullptr) << name;
  }
  std::int64_t store() { return kvshm_pages_store(pool.a, &table, h.data(), from, 5, 0, codes); }
  bool right(int i, std::uint32_t row) {
    const auto* p = static_cast<const std::uint8_t*>(kvshm_block_data(pool.a, h[i].id));
    for (const kvshm_run& r : runs)
      if (std::memcmp(p + r.offset, reinterpret_cast<void*>(r.address + row * r.stride), r.bytes))
        return false;
    return true;
  }
  std::size_t count() { return copies(&batches, &to); }

  Pool pool;
  std::vector<std::uint8_t> memory;
  kvshm_run runs[4];
  kvshm_pages table;
  const keys_t keys = keys_of(1, 5);
  handles_t h;
  const std::uint32_t from[5] = {9, 3, 15, 0, 4};
  std::int32_t codes[5] = {};
  std::size_t batches = 0;
  std::uint64_t* to = nullptr;
  void* lib = nullptr;
  void (*reset)(std::size_t) = nullptr;
  std::size_t (*copies)(std::size_t*, std::uint64_t**) = nullptr;
  void* (*own_context)() = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*init)(unsigned) = nullptr;
  int (*current)(void**) = nullptr;
};

TEST_F(CudaPages, OneBatchOnAStreamWhoseContextIsBorrowed) {
  table.stream = own_context();
  ASSERT_EQ(store(), 5) << kvshm_last_error();
  EXPECT_EQ(count(), 20u);
  EXPECT_EQ(batches, 1u);
  for (int i = 0; i < 5; i++) EXPECT_TRUE(right(i, from[i])) << i;
  for (std::uint64_t i = 0; i < 20; i++)  // row by row, run by run
    EXPECT_EQ(to[i], reinterpret_cast<std::uint64_t>(kvshm_block_data(pool.a, h[i / 4].id)) +
                         i % 4 * 1000);
  void* now = this;
  EXPECT_EQ(current(&now), 0);
  EXPECT_EQ(now, nullptr) << "the context was not given back";
  ASSERT_EQ(kvshm_pages_finish(pool.a, h.data(), 5, 0, codes), 5);

  std::uint32_t ids[5];
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(keys), 5, ids, &lease), 5);
  const std::vector<std::uint8_t> was = memory;
  const std::uint32_t back[5] = {5, 6, 7, 8, 10};
  ASSERT_EQ(kvshm_pages_load(pool.a, &table, h.data(), back, 5, 0, codes), 5);
  EXPECT_EQ(count(), 40u);
  for (int i = 0; i < 5; i++)
    for (std::size_t l = 0; l < 4; l++)
      EXPECT_EQ(std::memcmp(memory.data() + l * 16384 + back[i] * 1024,
                            was.data() + l * 16384 + from[i] * 1024, 1000),
                0);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
}

TEST_F(CudaPages, OneByOneOnTheDefaultStream) {
  ASSERT_EQ(push(own_context()), 0);
  ASSERT_EQ(store(), 5) << kvshm_last_error();
  EXPECT_EQ(count(), 20u);
  EXPECT_EQ(batches, 0u);
  for (int i = 0; i < 5; i++) EXPECT_TRUE(right(i, from[i])) << i;
  void* was;
  EXPECT_EQ(pop(&was), 0);
  EXPECT_EQ(was, own_context());
  EXPECT_EQ(abort_fills(pool.a, h), 0);
}

// Blocks 0 and 1 are whole; block 2 lacks a run; 3 and 4 are not tried.
TEST_F(CudaPages, ACopyThatIsRefused) {
  ASSERT_EQ(push(own_context()), 0);
  reset(10);
  EXPECT_EQ(store(), 2);
  EXPECT_EQ(count(), 10u);
  EXPECT_NE(std::strstr(kvshm_last_error(), "cuMemcpyAsync"), nullptr) << kvshm_last_error();
  const std::int32_t want[5] = {0, 0, -EIO, -EIO, -EIO};
  for (int i = 0; i < 5; i++) EXPECT_EQ(codes[i], want[i]) << i;
  EXPECT_EQ(kvshm_pages_finish(pool.a, h.data(), 5, 0, codes), 2);
  for (int i = 0; i < 5; i++) EXPECT_EQ(present(pool.a, keys[i]), i < 2) << i;
  void* was;
  EXPECT_EQ(pop(&was), 0);
  EXPECT_EQ(broken(pool.a), "");
}

// What is not admitted is not copied, and the codes stay with their blocks.
TEST_F(CudaPages, ARowThatDoesNotExistAndARefusal) {
  ASSERT_EQ(push(own_context()), 0);
  const std::uint32_t rows[5] = {16, 3, 99, 0, 4};
  reset(6);
  EXPECT_EQ(kvshm_pages_store(pool.a, &table, h.data(), rows, 5, 0, codes), 1);
  EXPECT_EQ(count(), 6u);
  const std::int32_t want[5] = {-ERANGE, 0, -ERANGE, -EIO, -EIO};
  for (int i = 0; i < 5; i++) EXPECT_EQ(codes[i], want[i]) << i;
  EXPECT_EQ(abort_fills(pool.a, h), 0);
  void* was;
  EXPECT_EQ(pop(&was), 0);
}

TEST_F(CudaPages, RowsFarApart) {
  constexpr std::uint64_t kStride = 5ull << 29;
  void* p = mmap(nullptr, 2 * kStride + 4096, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(p, MAP_FAILED);
  static_cast<char*>(p)[2 * kStride] = 7;
  runs[0] = {reinterpret_cast<std::uint64_t>(p), kStride, 512, 0};
  table.nruns = 1, table.rows = 3, table.stream = own_context();
  const std::uint32_t row = 2;
  EXPECT_EQ(kvshm_pages_store(pool.a, &table, h.data(), &row, 1, 0, codes), 1);
  EXPECT_EQ(*static_cast<char*>(kvshm_block_data(pool.a, h[0].id)), 7);
  munmap(p, 2 * kStride + 4096);
  EXPECT_EQ(abort_fills(pool.a, h), 0);
}

TEST_F(CudaPages, ABatchThatIsRefusedFailsAsAWhole) {
  table.stream = own_context();
  reset(10);
  EXPECT_EQ(store(), 0);
  for (std::int32_t code : codes) EXPECT_EQ(code, -EIO);
  EXPECT_EQ(kvshm_pages_finish(pool.a, h.data(), 5, 0, codes), 0);
  for (const auto& k : keys) EXPECT_FALSE(present(pool.a, k));
  EXPECT_EQ(broken(pool.a), "");
}

TEST_F(CudaPages, WithoutAContextNothingIsBegun) {
  EXPECT_EQ(store(), -KVSHM_EUNSUPPORTED);
  for (std::int32_t code : codes) EXPECT_EQ(code, -KVSHM_EUNSUPPORTED);
  EXPECT_EQ(count(), 0u);
  EXPECT_EQ(block(pool.a, h[0].id).begun, 0u);
  EXPECT_EQ(abort_fills(pool.a, h), 0);
}

}  // namespace
