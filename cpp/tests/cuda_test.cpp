// SPDX-License-Identifier: Apache-2.0
// CUDA's backend on a driver without a GPU (tests/device/native/fake_cuda.c), which the loader finds
// first: the environment of this test says so. Without that the tests are skipped.
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "device_support.hpp"

using namespace kvshm_test;

namespace {

class Cuda : public ::testing::Test {
 protected:
  Cuda() : pool({.blocks = 64, .block_bytes = kMiB}) {}
  void SetUp() override {
    lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib || !dlsym(lib, "fake_own_context"))
      GTEST_SKIP() << "libcuda.so.1 is not the fake one: run it by ctest";
    load(reset, "mock_reset");
    load(set, "mock_set");
    load(look, "mock_look");
    load(foreign, "mock_foreign");
    load(references, "fake_primary_references");
    load(reset_primary, "fake_reset_primary");
    load(own_context, "fake_own_context");
    load(push, "cuCtxPushCurrent_v2");
    load(pop, "cuCtxPopCurrent_v2");
    load(init, "cuInit");
    load(retain, "cuDevicePrimaryCtxRetain");
    load(give_up, "cuDevicePrimaryCtxRelease_v2");
    reset();
    setenv("KVSHM_FAKE_CUDA_DEVICES", "2", 1);
    init(0);
  }
  void TearDown() override {
    if (!look) return;
    pool.leave();
    EXPECT_EQ(look().ranges, 0u);
    EXPECT_EQ(look().unknown, 0u);
  }
  template <class F>
  void load(F& f, const char* name) {
    f = reinterpret_cast<F>(dlsym(lib, name));
    ASSERT_NE(f, nullptr) << name;
  }
  static kvshm_device_options cuda(std::uint32_t mode = KVSHM_REQUIRE) {
    kvshm_device_options o = KVSHM_DEVICE_OPTIONS_INIT;
    o.mode = mode;
    o.piece_bytes = 16 * kMiB;
    return o;
  }

  Pool pool;
  void* lib = nullptr;
  void (*reset)() = nullptr;
  mock_setting* (*set)() = nullptr;
  mock_seen (*look)() = nullptr;
  void (*foreign)(const void*, size_t) = nullptr;
  int (*references)(int) = nullptr;
  void (*reset_primary)(int) = nullptr;
  void* (*own_context)() = nullptr;
  int (*push)(void*) = nullptr;
  int (*pop)(void**) = nullptr;
  int (*init)(unsigned) = nullptr;
  int (*retain)(void**, int) = nullptr;
  int (*give_up)(int) = nullptr;
};

TEST_F(Cuda, KeepsThePrimaryContextWhileItIsRegistered) {
  auto o = cuda();
  o.device = 1;
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0) << kvshm_last_error();
  EXPECT_STREQ(device(pool.a).backend, "cuda");
  EXPECT_EQ(look().registers, 4u);
  EXPECT_EQ(references(1), 1);
  EXPECT_EQ(references(0), 0);
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_EQ(references(1), 1);
  ASSERT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  ASSERT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  EXPECT_EQ(look().unregisters, 4u);
  EXPECT_EQ(references(1), 0);
}

TEST_F(Cuda, TakesTheContextOfTheCaller) {
  ASSERT_EQ(push(own_context()), 0);
  const auto o = cuda();
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0) << kvshm_last_error();
  EXPECT_EQ(references(0), 0);  // no second context is made
  void* was = nullptr;
  ASSERT_EQ(pop(&was), 0);
  EXPECT_EQ(was, own_context());
  ASSERT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
}

TEST_F(Cuda, TheCallersContextMayBeThePrimaryOne) {
  void* primary = nullptr;
  ASSERT_EQ(retain(&primary, 0), 0);
  ASSERT_EQ(push(primary), 0);
  const auto o = cuda();
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0) << kvshm_last_error();
  EXPECT_EQ(references(0), 2);  // kept by us as well
  ASSERT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  EXPECT_EQ(references(0), 1);
  void* was;
  pop(&was);
  EXPECT_EQ(give_up(0), 0);
}

TEST_F(Cuda, TheContextIsGoneFirst) {
  ASSERT_EQ(push(own_context()), 0);
  const auto o = cuda();
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  set()->gone = 1;
  EXPECT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  EXPECT_EQ(device(pool.a).stuck, 0u);
  void* was;
  pop(&was);
  reset();                                          // its registrations went with it
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);  // now with the primary one
  EXPECT_EQ(references(0), 1);
  reset_primary(0);
  EXPECT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  EXPECT_EQ(references(0), 0);
  EXPECT_EQ(device(pool.a).stuck, 0u);
  reset();
}

TEST_F(Cuda, RefusalsInWords) {
  set()->fail_from = 3;
  auto o = cuda();
  ASSERT_EQ(kvshm_register_device(pool.a, &o), -KVSHM_EUNSUPPORTED);
  EXPECT_NE(std::strstr(kvshm_last_error(), "out of memory (2)"), nullptr) << kvshm_last_error();
  EXPECT_EQ(look().ranges, 0u);
  EXPECT_EQ(references(0), 0);
  o.device = 5;
  ASSERT_EQ(kvshm_register_device(pool.a, &o), -KVSHM_EUNSUPPORTED);
  EXPECT_NE(std::strstr(kvshm_last_error(), "invalid device ordinal (101)"), nullptr)
      << kvshm_last_error();
}

TEST_F(Cuda, NoDevice) {
  setenv("KVSHM_FAKE_CUDA_DEVICES", "0", 1);
  auto o = cuda(KVSHM_AUTO);
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_EQ(device(pool.a).state, unsigned(KVSHM_DEVICE_REFUSED));
  EXPECT_NE(std::strstr(device(pool.a).reason, "no CUDA-capable device"), nullptr);
  EXPECT_EQ(process(pool.a, slot_of(pool.a)).device_memory, 0u);
  EXPECT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  o.mode = KVSHM_REQUIRE;
  EXPECT_EQ(kvshm_register_device(pool.a, &o), -KVSHM_EUNSUPPORTED);
}

TEST_F(Cuda, RegisteredBySomebodyElse) {
  auto* data = static_cast<char*>(kvshm_block_data(pool.a, 0));
  foreign(data, 16 * kMiB);                // the first piece
  foreign(data + 40 * kMiB - 4096, 4096);  // a page of block 39
  const auto o = cuda(KVSHM_AUTO);
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_EQ(ranges(pool.a), "0+16f 16+23 40+24");
  EXPECT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  EXPECT_EQ(look().foreign_undone, 0u);
}

// Undone by somebody else (a reset of the device): nothing is left to do.
TEST_F(Cuda, UndoneBySomebodyElse) {
  const auto o = cuda();
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  reset();
  EXPECT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  EXPECT_EQ(device(pool.a).stuck, 0u);
  EXPECT_EQ(look().unknown, 4u);
  reset();
}

}  // namespace
