// SPDX-License-Identifier: Apache-2.0
// Paged KV of many small pieces by the kernel, on a driver and a compiler without a GPU
// (tests/device/native): what is launched is run on the host, by the kernel's own text.
#include "device/cuda_kernel.hpp"

#include <dlfcn.h>

#include "support.hpp"

using namespace kvshm_test;

namespace {

constexpr std::uint32_t kRows = 400, kBlocks = 256;

class CudaKernel : public ::testing::Test {
 protected:
  void SetUp() override {
    lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib || !dlsym(lib, "fake_launches"))
      GTEST_SKIP() << "libcuda.so.1 is not the fake one: run it by ctest";
    load(copies_reset, "fake_copies_reset"), load(copies, "fake_copies");
    load(reset, "fake_launches_reset"), load(launches, "fake_launches");
    load(own_context, "fake_own_context"), load(push, "cuCtxPushCurrent_v2");
    load(pop, "cuCtxPopCurrent_v2"), load(init, "cuInit");
    setenv("KVSHM_FAKE_CUDA_DEVICES", "1", 1);
    init(0);
    ASSERT_EQ(push(own_context()), 0);
    copies_reset(0), reset(0);
  }
  void TearDown() override {
    void* was;
    if (pop) pop(&was);
  }
  template <class F>
  void load(F& f, const char* name) {
    f = reinterpret_cast<F>(dlsym(lib, name));
    ASSERT_NE(f, nullptr) << name;
  }
  // `layers` tensors with `heads` pieces of `bytes` a row each, `gap` bytes beside each piece.
  void table_of(std::uint64_t layers, std::uint64_t heads, std::uint64_t bytes, std::uint64_t gap) {
    const std::uint64_t stride = bytes + gap, layer = heads * kRows * stride + 4096;
    memory.resize(layers * layer + 64);
    for (std::size_t i = 0; i < memory.size(); i++) memory[i] = std::uint8_t(i * 31 + i / 511);
    const std::uint64_t base = (reinterpret_cast<std::uint64_t>(memory.data()) + 63) / 64 * 64;
    runs.clear();
    for (std::uint64_t l = 0; l < layers; l++)
      for (std::uint64_t h = 0; h < heads; h++)
        runs.push_back({base + l * (layer / 64 * 64) + h * kRows * stride, stride, bytes,
                        (l * heads + h) * bytes});
    table = KVSHM_PAGES_INIT;
    table.runs = runs.data(), table.nruns = std::uint32_t(runs.size()), table.rows = kRows;
    table.slice_bytes = (layers * heads * bytes + 63) / 64 * 64;
    table.memory = KVSHM_MEMORY_CUDA, table.stream = own_context();
  }
  void allocate(std::uint32_t n) {
    keys = keys_of(1, n);
    h.resize(n), codes.assign(n, 0), rows.resize(n);
    for (std::uint32_t i = 0; i < n; i++) rows[i] = (i * 7 + 3) % kRows;
    ASSERT_EQ(kvshm_allocate(pool.a, n, raw(keys), nullptr, h.data(), nullptr, nullptr), 0);
  }
  std::int64_t store() {
    return kvshm_pages_store(pool.a, &table, h.data(), rows.data(), std::uint32_t(h.size()), 0,
                             codes.data());
  }
  void ready() {  // the kernel is made in the background; the first call begins that
    kvshm_device_options o = KVSHM_DEVICE_OPTIONS_INIT;
    ASSERT_EQ(kvshm_register_device(pool.a, &o), 0) << kvshm_last_error();
    kvshm::cuda::kernel_of(*kvshm::cuda::driver(&why), own_context());
    kvshm::cuda::wait_kernels();
    copies_reset(0), reset(0);
  }
  bool right(std::size_t i, std::uint32_t row) {
    const auto* p = static_cast<const std::uint8_t*>(kvshm_block_data(pool.a, h[i].id));
    for (const kvshm_run& r : runs)
      if (std::memcmp(p + r.offset, reinterpret_cast<void*>(r.address + row * r.stride), r.bytes))
        return false;
    return true;
  }
  std::size_t copied() {
    std::size_t batches;
    std::uint64_t* to;
    return copies(&batches, &to);
  }

  Pool pool{{.blocks = kBlocks, .block_bytes = 16384}};
  std::vector<std::uint8_t> memory;
  std::vector<kvshm_run> runs;
  kvshm_pages table;
  keys_t keys;
  handles_t h;
  std::vector<std::uint32_t> rows;
  std::vector<std::int32_t> codes;
  const char* why = nullptr;
  void* lib = nullptr;
  void (*copies_reset)(std::size_t) = nullptr;
  std::size_t (*copies)(std::size_t*, std::uint64_t**) = nullptr;
  void (*reset)(std::size_t) = nullptr;
  std::size_t (*launches)() = nullptr;
  void* (*own_context)() = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*init)(unsigned) = nullptr;
};

TEST_F(CudaKernel, ThereAndBackInEveryUnit) {
  ready();
  for (const std::uint64_t bytes : {64u, 48u, 40u, 36u, 33u}) {  // 16, 16, 8, 4 and 1 at a time
    table_of(3, 5, bytes, bytes == 48 ? 16 : bytes % 16 == 8 ? 8 : bytes % 4 == 0 ? 4 : 2);
    allocate(9);
    reset(0);
    ASSERT_EQ(store(), 9) << kvshm_last_error();
    EXPECT_EQ(launches(), 1u);
    EXPECT_EQ(copied(), 0u);
    for (std::size_t i = 0; i < h.size(); i++) EXPECT_TRUE(right(i, rows[i])) << bytes << " " << i;
    ASSERT_EQ(kvshm_pages_finish(pool.a, h.data(), 9, 0, codes.data()), 9);
    std::uint32_t ids[9];
    kvshm_lease lease;
    ASSERT_EQ(kvshm_match(pool.a, raw(keys), 9, ids, &lease), 9);
    std::vector<std::uint8_t> want = memory;
    for (std::size_t i = 0; i < 9; i++) {
      const std::uint32_t to = std::uint32_t(390 - i);
      for (const kvshm_run& r : runs)
        std::memcpy(want.data() + (r.address + to * r.stride -
                                   reinterpret_cast<std::uint64_t>(memory.data())),
                    reinterpret_cast<void*>(r.address + rows[i] * r.stride), r.bytes);
      rows[i] = to;
    }
    ASSERT_EQ(kvshm_pages_load(pool.a, &table, h.data(), rows.data(), 9, 0, codes.data()), 9);
    EXPECT_EQ(launches(), 2u);
    EXPECT_EQ(memory, want) << "also not a byte beside them";
    EXPECT_EQ(kvshm_release(pool.a, lease), 0);
    EXPECT_EQ(kvshm_evict(pool.a, raw(keys), 9), 9);
  }
}

// More rows and more groups than one launch takes: layers that lie at no equal distance.
TEST_F(CudaKernel, SeveralLaunches) {
  ready();
  table_of(60, 2, 64, 0);
  for (std::size_t i = 0; i < runs.size(); i++) runs[i].address += i / 2 * (i / 2) % 7 * 64;
  allocate(150);
  ASSERT_EQ(store(), 150) << kvshm_last_error();
  EXPECT_EQ(launches(), 4u);  // 112 + 38 rows, 56 + 4 groups
  for (std::size_t i = 0; i < h.size(); i++) EXPECT_TRUE(right(i, rows[i])) << i;
  EXPECT_EQ(abort_fills(pool.a, h), 0);
}

TEST_F(CudaKernel, CopiesDoWhatIsNotForIt) {
  table_of(2, 4, 64, 0);
  allocate(3);
  EXPECT_EQ(store(), 3);
  EXPECT_EQ(launches(), 0u) << "the arena is not registered: a device would be lost";
  EXPECT_EQ(copied(), 24u);
  EXPECT_EQ(abort_fills(pool.a, h), 0);
  ready();
  table_of(1, 1, 8192, 0);  // one piece
  allocate(3);
  EXPECT_EQ(store(), 3);
  EXPECT_EQ(launches(), 0u);
  EXPECT_EQ(abort_fills(pool.a, h), 0);
  table_of(2, 4, 64, 0);
  allocate(3);
  reset(1);  // the driver refuses it, so nothing was begun
  EXPECT_EQ(store(), 3);
  EXPECT_EQ(copied(), 27u);
  for (std::size_t i = 0; i < h.size(); i++) EXPECT_TRUE(right(i, rows[i])) << i;
  EXPECT_EQ(abort_fills(pool.a, h), 0);
}

TEST_F(CudaKernel, ARefusalInTheMidstFailsAll) {
  ready();
  table_of(2, 4, 64, 0);
  allocate(150);
  reset(2);
  EXPECT_EQ(store(), 0);
  EXPECT_NE(std::strstr(kvshm_last_error(), "cuLaunchKernel"), nullptr) << kvshm_last_error();
  for (std::int32_t code : codes) EXPECT_EQ(code, -EIO);
  EXPECT_EQ(kvshm_pages_finish(pool.a, h.data(), 150, 0, codes.data()), 0);
  for (const auto& k : keys) EXPECT_FALSE(present(pool.a, k));
  EXPECT_EQ(broken(pool.a), "");
}

}  // namespace
