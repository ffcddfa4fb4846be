// SPDX-License-Identifier: Apache-2.0
// Registration with a device in pieces (S52), counted and undone once (S53).
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "device_support.hpp"

using namespace kvshm_test;

namespace {

// 100 MiB in blocks of 1 MiB.
class Device : public ::testing::Test {
 protected:
  Device() : pool({.blocks = 100, .block_bytes = kMiB}) {
    mock_reset();
    watch(pool.a);
  }
  ~Device() override {
    pool.leave();
    EXPECT_EQ(untidy(), "");
    mock_reset();
  }
  static void watch(kvshm_arena* a) {
    auto i = sized<kvshm_info>();
    ASSERT_EQ(kvshm_get_info(a, &i), 0);
    mock_blocks(kvshm_block_data(a, 0), i.blocks * i.block_bytes, i.block_bytes);
  }
  Pool pool;
};

TEST_F(Device, PiecesOfTheSizeAskedForOnBlockBoundaries) {
  const auto o = mock_options(16 * kMiB);
  mock_set()->cap = 16 * kMiB;
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0) << kvshm_last_error();
  const kvshm_device d = device(pool.a);
  EXPECT_EQ(d.state, unsigned(KVSHM_DEVICE_REGISTERED));
  EXPECT_EQ(d.pieces, 7u);
  EXPECT_EQ(d.piece_blocks, 16u);
  EXPECT_EQ(d.bytes_registered, 100 * kMiB);
  EXPECT_EQ(d.bytes, 100 * kMiB);
  EXPECT_STREQ(d.backend, "mock");
  EXPECT_EQ(ranges(pool.a), "0+100");
  const mock_seen s = mock_look();
  EXPECT_EQ(s.registers, 7u);
  EXPECT_EQ(s.refusals, 0u);
  EXPECT_EQ(s.bytes, 100 * kMiB);
  const kvshm_process p = process(pool.a, slot_of(pool.a));
  EXPECT_EQ(p.device_bytes, 100 * kMiB);
  EXPECT_EQ(p.device_state, unsigned(KVSHM_DEVICE_REGISTERED));
  EXPECT_EQ(p.device_memory, 1u);
  EXPECT_EQ(stats(pool.a).device_registered_total, 7u);
  ASSERT_EQ(kvshm_unregister_device(pool.a, 10000), 0);
  EXPECT_EQ(mock_look().unregisters, 7u);
  EXPECT_EQ(mock_look().finished, 1u);
  EXPECT_EQ(device(pool.a).state, unsigned(KVSHM_DEVICE_NONE));
  const kvshm_process after = process(pool.a, slot_of(pool.a));
  EXPECT_EQ(after.device_memory, 0u);
  EXPECT_EQ(after.device_bytes, 0u);
}

// The backend says what it takes.
TEST_F(Device, ACapThatIsKnownIsKept) {
  kvshm_device_backend b = mock_backend;
  b.max_bytes = 16 * kMiB + 5;
  auto o = mock_options();
  o.backend = &b;
  mock_set()->cap = 16 * kMiB;
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_EQ(device(pool.a).bytes_registered, 100 * kMiB);
  EXPECT_EQ(mock_look().refusals, 0u);
}

// It does not, and refuses what is larger: smaller pieces are tried.
TEST_F(Device, ACapThatIsNotKnownIsFound) {
  const auto o = mock_options();  // 1 GiB
  mock_set()->cap = 16 * kMiB;
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_EQ(device(pool.a).state, unsigned(KVSHM_DEVICE_REGISTERED));
  EXPECT_EQ(device(pool.a).piece_blocks, 12u);  // 100, 50, 25, 12
  EXPECT_EQ(mock_look().refusals, 3u);
  EXPECT_EQ(stats(pool.a).device_refused_total, 3u);
  EXPECT_LE(mock_look().bytes, 100 * kMiB);
}

TEST_F(Device, ThirdPieceRefusedAutoGoesOnPartlyPinned) {
  const auto o = mock_options(16 * kMiB);
  mock_set()->fail_from = 3;
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  const kvshm_device d = device(pool.a);
  EXPECT_EQ(d.state, unsigned(KVSHM_DEVICE_PARTLY));
  EXPECT_EQ(d.bytes_registered, 32 * kMiB);
  EXPECT_EQ(d.code, MOCK_NO_MEMORY);
  EXPECT_NE(std::strstr(d.reason, "block 32 of 100"), nullptr) << d.reason;
  EXPECT_NE(std::strstr(d.reason, "out of device memory"), nullptr) << d.reason;
  EXPECT_EQ(ranges(pool.a), "0+32");
  const kvshm_process p = process(pool.a, slot_of(pool.a));
  EXPECT_EQ(p.device_state, unsigned(KVSHM_DEVICE_PARTLY));
  EXPECT_EQ(p.device_bytes, 32 * kMiB);
  // The arena works.
  make_cached(pool.a, key_of(1));
  EXPECT_TRUE(present(pool.a, key_of(1)));
  // One that wants all of it: no; and the first one keeps what it has.
  const auto all = mock_options(16 * kMiB, KVSHM_REQUIRE);
  EXPECT_EQ(kvshm_register_device(pool.a, &all), -KVSHM_EUNSUPPORTED);
  EXPECT_EQ(device(pool.a).references, 1u);
  EXPECT_EQ(ranges(pool.a), "0+32");
}

TEST_F(Device, ThirdPieceRefusedRequireRollsBack) {
  const auto o = mock_options(16 * kMiB, KVSHM_REQUIRE);
  mock_set()->fail_from = 3;
  ASSERT_EQ(kvshm_register_device(pool.a, &o), -KVSHM_EUNSUPPORTED);
  EXPECT_NE(std::strstr(kvshm_last_error(), "out of device memory"), nullptr) << kvshm_last_error();
  EXPECT_EQ(mock_look().unregisters, 2u);
  EXPECT_EQ(mock_look().ranges, 0u);
  EXPECT_EQ(mock_look().finished, 1u);
  EXPECT_EQ(device(pool.a).state, unsigned(KVSHM_DEVICE_REFUSED));
  EXPECT_EQ(device(pool.a).references, 0u);
  EXPECT_EQ(process(pool.a, slot_of(pool.a)).device_memory, 0u);  // nothing can write for it
  EXPECT_EQ(kvshm_unregister_device(pool.a, 0), -KVSHM_ESTATE);
  // The reason is over: it can be had.
  mock_set()->fail_from = 0;
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_EQ(device(pool.a).state, unsigned(KVSHM_DEVICE_REGISTERED));
}

TEST_F(Device, NoDeviceAtAll) {
  mock_set()->gone = 1;
  auto o = mock_options();
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_EQ(device(pool.a).state, unsigned(KVSHM_DEVICE_REFUSED));
  EXPECT_EQ(mock_look().registers, 1u);  // smaller ones are not tried
  EXPECT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  o.mode = KVSHM_REQUIRE;
  EXPECT_EQ(kvshm_register_device(pool.a, &o), -KVSHM_EUNSUPPORTED);
}

// Three attachments, one of them refused: each says so for itself.
TEST_F(Device, OneOfThreeClientsIsRefused) {
  kvshm_arena *b = pool.another(), *c = pool.another();
  const auto o = mock_options(16 * kMiB);
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  mock_set()->fail_from = mock_look().ranges + 3;
  ASSERT_EQ(kvshm_register_device(b, &o), 0);
  mock_set()->fail_from = 0;
  ASSERT_EQ(kvshm_register_device(c, &o), 0);
  EXPECT_EQ(process(pool.a, slot_of(pool.a)).device_bytes, 100 * kMiB);
  EXPECT_EQ(process(pool.a, slot_of(b)).device_bytes, 32 * kMiB);
  EXPECT_EQ(process(pool.a, slot_of(b)).device_state, unsigned(KVSHM_DEVICE_PARTLY));
  EXPECT_EQ(process(pool.a, slot_of(c)).device_bytes, 100 * kMiB);
  for (kvshm_arena* x : {b, c}) EXPECT_EQ(kvshm_unregister_device(x, 10000), 0);
}

// Blocks that are no multiple of a page: a piece ends where both a block and a page end.
TEST(DevicePieces, OddBlocksStraddleNeitherPieceNorPage) {
  for (const std::uint64_t block_bytes : {64, 4160, 12352, 65536 + 64}) {
    mock_reset();
    Pool pool({.blocks = 1000, .block_bytes = block_bytes});
    mock_blocks(kvshm_block_data(pool.a, 0), 1000 * block_bytes, block_bytes);
    const auto o = mock_options(kMiB);
    ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
    EXPECT_EQ(device(pool.a).bytes_registered, 1000 * block_bytes) << block_bytes;
    EXPECT_EQ(mock_look().already, 0u) << block_bytes;
    EXPECT_EQ(ranges(pool.a), "0+1000");
    pool.leave();
    EXPECT_EQ(untidy(), "") << block_bytes;
  }
}

TEST_F(Device, AReferenceIsCounted) {
  const auto o = mock_options(16 * kMiB);
  for (int i = 0; i < 3; i++) ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_EQ(mock_look().registers, 7u);
  EXPECT_EQ(device(pool.a).references, 3u);
  for (int i = 0; i < 2; i++) ASSERT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  EXPECT_EQ(mock_look().unregisters, 0u);
  ASSERT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  EXPECT_EQ(mock_look().unregisters, 7u);
  EXPECT_EQ(kvshm_unregister_device(pool.a, 1000), -KVSHM_ESTATE);
  EXPECT_EQ(mock_look().unregisters, 7u);
}

TEST_F(Device, AnotherBackendIsRefused) {
  const auto o = mock_options();
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  kvshm_device_backend other = mock_backend;
  other.user = &other;
  auto p = o;
  p.backend = &other;
  EXPECT_EQ(kvshm_register_device(pool.a, &p), -EBUSY);
  p.backend = nullptr;
  EXPECT_EQ(kvshm_register_device(pool.a, &p), -EBUSY);
  EXPECT_EQ(device(pool.a).references, 1u);
}

// Two attachments of one process are two mappings; each has its own.
TEST_F(Device, AttachedTwiceInOneProcess) {
  kvshm_arena* b = pool.another();
  const auto o = mock_options(16 * kMiB);
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  ASSERT_EQ(kvshm_register_device(b, &o), 0);
  EXPECT_EQ(mock_look().ranges, 14u);
  ASSERT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  EXPECT_EQ(mock_look().ranges, 7u);
  EXPECT_EQ(device(b).bytes_registered, 100 * kMiB);
  ASSERT_EQ(kvshm_unregister_device(b, 1000), 0);
}

TEST_F(Device, MadeAHundredTimes) {
  const auto o = mock_options(16 * kMiB);
  for (int i = 0; i < 100; i++) {
    kvshm_arena* b = attach(pool.name);
    ASSERT_NE(b, nullptr);
    ASSERT_EQ(kvshm_register_device(b, &o), 0);
    if (i % 2) {
      ASSERT_EQ(kvshm_unregister_device(b, 1000), 0);
    }
    ASSERT_EQ(kvshm_close(b, 5000), 0);
  }
  EXPECT_EQ(mock_look().registers, 700u);
  EXPECT_EQ(mock_look().unregisters, 700u);
  EXPECT_EQ(mock_look().finished, 100u);
}

// All of it is registered by somebody else before: accepted, counted, not undone by us.
TEST_F(Device, SomebodyElseHasIt) {
  mock_foreign(kvshm_block_data(pool.a, 0), 100 * kMiB);
  const auto o = mock_options(16 * kMiB, KVSHM_REQUIRE);
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  const kvshm_device d = device(pool.a);
  EXPECT_EQ(d.state, unsigned(KVSHM_DEVICE_REGISTERED));
  EXPECT_EQ(d.bytes_foreign, 100 * kMiB);
  EXPECT_EQ(ranges(pool.a), "0+100f");
  EXPECT_EQ(stats(pool.a).device_foreign_total, 7u);
  EXPECT_EQ(mock_look().pending, 0u);
  ASSERT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  EXPECT_EQ(mock_look().unregisters, 0u);
  EXPECT_EQ(mock_look().foreign_ranges, 1u);
  // The other registration is still there, and so is the mark.
  EXPECT_EQ(process(pool.a, slot_of(pool.a)).device_memory, 1u);
}

// A range of somebody else overlaps ours by one page: all other blocks are registered.
TEST_F(Device, SomebodyElseOverlapsByAPage) {
  auto* data = static_cast<char*>(kvshm_block_data(pool.a, 0));
  mock_foreign(data + 40 * kMiB - 4096, 8192);  // the last page of block 39, the first of 40
  mock_foreign(data - 4096, 8192);              // from the metadata into block 0
  const auto o = mock_options(16 * kMiB);
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  const kvshm_device d = device(pool.a);
  EXPECT_EQ(d.state, unsigned(KVSHM_DEVICE_PARTLY));
  EXPECT_EQ(ranges(pool.a), "1+38 41+59");
  EXPECT_EQ(d.bytes_foreign, 0u);
  EXPECT_NE(std::strstr(d.reason, "somebody else"), nullptr) << d.reason;
  EXPECT_EQ(mock_look().pending, 0u);
  // Required, it is rolled back.
  ASSERT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
  EXPECT_EQ(mock_look().ranges, 0u);
  const auto all = mock_options(16 * kMiB, KVSHM_REQUIRE);
  EXPECT_EQ(kvshm_register_device(pool.a, &all), -KVSHM_EUNSUPPORTED);
  EXPECT_EQ(mock_look().ranges, 0u);
  EXPECT_EQ(mock_look().foreign_ranges, 2u);
}

TEST_F(Device, ABackendThatCannotTellIsBelieved) {
  mock_foreign(kvshm_block_data(pool.a, 0), 100 * kMiB);
  kvshm_device_backend b = mock_backend;
  b.covers = nullptr;
  auto o = mock_options();
  o.backend = &b;
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_EQ(device(pool.a).bytes_foreign, 100 * kMiB);
}

// The context goes before the registration does.
TEST_F(Device, DetachAfterTheContext) {
  const auto o = mock_options(16 * kMiB);
  kvshm_arena* b = pool.another();
  ASSERT_EQ(kvshm_register_device(b, &o), 0);
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  mock_set()->gone = 1;
  EXPECT_EQ(kvshm_unregister_device(b, 5000), 0);
  EXPECT_EQ(device(b).state, unsigned(KVSHM_DEVICE_NONE));
  EXPECT_EQ(device(b).stuck, 0u);
  EXPECT_EQ(own_stats(b).device_undone_total, 7u);
  pool.leave();
  const mock_seen s = mock_look();
  EXPECT_EQ(s.unregisters, 14u);  // each once
  EXPECT_EQ(s.pending, 0u);
  EXPECT_EQ(s.leaked, 0u);
  mock_reset();  // a real context takes its registrations with it
}

bool mapped(const void* p) {
  unsigned char there;
  return mincore(const_cast<void*>(p), 4096, &there) == 0;
}

// Undone before the memory is unmapped; and where it cannot be undone, the memory stays.
TEST_F(Device, MemoryStaysMappedWhileADeviceHasIt) {
  const auto o = mock_options(16 * kMiB);
  kvshm_arena* b = attach(pool.name);
  const void* data = kvshm_block_data(b, 0);
  ASSERT_EQ(kvshm_register_device(b, &o), 0);
  ASSERT_EQ(kvshm_close(b, 5000), 0);
  EXPECT_FALSE(mapped(data));
  b = attach(pool.name);
  data = kvshm_block_data(b, 0);
  ASSERT_EQ(kvshm_register_device(b, &o), 0);
  mock_set()->broken = 1;
  ASSERT_EQ(kvshm_close(b, 5000), 0);
  EXPECT_TRUE(mapped(data));
  EXPECT_EQ(mock_look().ranges, 7u);
  EXPECT_EQ(mock_look().pending, 0u);
  EXPECT_EQ(stats(pool.a).device_stuck_total, 7u);
  EXPECT_EQ(stats(pool.a).slots_used, 1u);  // the slot is free all the same
  mock_reset();
}

TEST_F(Device, InTheBackgroundWithProgress) {
  mock_set()->bytes_per_second = 100 * kMiB;
  auto o = mock_options(4 * kMiB);
  o.timeout_ms = 0;
  const std::int64_t began = now_ms();
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_LT(now_ms() - began, 300);
  EXPECT_EQ(device(pool.a).state, unsigned(KVSHM_DEVICE_REGISTERING));
  make_cached(pool.a, key_of(1));
  EXPECT_TRUE(present(pool.a, key_of(1)));
  EXPECT_EQ(kvshm_wait_device(pool.a, 100), -ETIMEDOUT);
  const std::uint64_t some = process(pool.a, slot_of(pool.a)).device_bytes;
  EXPECT_GT(some, 0u);
  EXPECT_LT(some, 100 * kMiB);
  // A second one waits for the first, as long as it may.
  o.timeout_ms = 50;
  EXPECT_EQ(kvshm_register_device(pool.a, &o), -ETIMEDOUT);
  EXPECT_EQ(kvshm_wait_device(pool.a, 20000), 0);
  EXPECT_EQ(device(pool.a).bytes_registered, 100 * kMiB);
  EXPECT_EQ(device(pool.a).references, 2u);
  EXPECT_EQ(kvshm_unregister_device(pool.a, 1000), 0);
}

TEST_F(Device, GivenBackWhileItIsMade) {
  mock_set()->bytes_per_second = 100 * kMiB;
  auto o = mock_options(4 * kMiB);
  o.timeout_ms = 0;
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_EQ(kvshm_wait_device(pool.a, 100), -ETIMEDOUT);
  ASSERT_EQ(kvshm_unregister_device(pool.a, 5000), 0);
  EXPECT_LT(mock_look().registers, 20u);
  EXPECT_EQ(mock_look().unregisters, mock_look().registers);
  EXPECT_EQ(device(pool.a).state, unsigned(KVSHM_DEVICE_NONE));
  ASSERT_EQ(kvshm_register_device(pool.a, &o), 0);
  EXPECT_EQ(kvshm_wait_device(pool.a, 50), -ETIMEDOUT);
  pool.leave();  // closes
  EXPECT_LT(mock_look().registers, 40u);
  EXPECT_EQ(mock_look().ranges, 0u);
}

TEST_F(Device, SenselessArguments) {
  EXPECT_EQ(kvshm_register_device(nullptr, nullptr), -EINVAL);
  auto o = mock_options();
  o.size = 8;
  EXPECT_EQ(kvshm_register_device(pool.a, &o), -EINVAL);
  o = mock_options();
  o.mode = KVSHM_OFF;
  EXPECT_EQ(kvshm_register_device(pool.a, &o), -EINVAL);
  o = mock_options();
  o.drain_ms = 3600001;
  EXPECT_EQ(kvshm_register_device(pool.a, &o), -EINVAL);
  kvshm_device_backend b = mock_backend;
  b.unregister_memory = nullptr;
  o = mock_options();
  o.backend = &b;
  EXPECT_EQ(kvshm_register_device(pool.a, &o), -EINVAL);
  EXPECT_EQ(kvshm_get_device(pool.a, nullptr), -EINVAL);
  EXPECT_EQ(kvshm_device_ranges(pool.a, nullptr, 1), -EINVAL);
  EXPECT_EQ(kvshm_wait_device(pool.a, 0), 0);
  Pool without({.blocks = 4, .block_bytes = 0});
  o = mock_options();
  EXPECT_EQ(kvshm_register_device(without.a, &o), -EINVAL);
}

TEST_F(Device, ManyThreadsAskForIt) {
  const auto o = mock_options(kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([&] {
      for (int i = 0; i < 25; i++) {
        const int rc = kvshm_register_device(pool.a, &o);
        if (rc == -EBUSY) continue;  // being undone
        EXPECT_TRUE(rc == 0) << rc;
        device(pool.a);
        ranges(pool.a);
        EXPECT_EQ(kvshm_unregister_device(pool.a, 10000), 0);
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(kvshm_wait_device(pool.a, 10000), 0);
  EXPECT_EQ(mock_look().registers, mock_look().unregisters);
}

}  // namespace
