// SPDX-License-Identifier: Apache-2.0
// The two engines on a file system that is frozen under them, a real one on a loop device.
#include <signal.h>
#include <unistd.h>

#include "engine_support.hpp"
#include "mount_support.hpp"

using namespace kvshm_test;

namespace {

constexpr std::uint32_t kWrites = 4;

// Of 1 MiB a write: twice as many as there are, the first half, or all of it, written before.
File file_of(const Ext4& disk, bool written) {
  File f(open(disk.file().c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600));
  Memory m(kMiB);
  if (!f || fallocate(f.get(), 0, 0, 2 * kWrites * kMiB)) return File();
  for (unsigned i = 0; i < kWrites + (written ? kWrites : 0); i++)
    if (pwrite(f.get(), m.at, kMiB, i * kMiB) != kMiB) return File();
  fsync(f.get());
  return f;
}

Transfer write_of(Memory& m, unsigned i) {  // the second half of the file
  return {.kind = Transfer::kWrite,
          .bytes = kMiB,
          .data = m.at + i * kMiB,
          .offset = (kWrites + i) * std::uint64_t{kMiB},
          .token = i};
}

class TierFrozen : public testing::TestWithParam<std::uint32_t> {};

}  // namespace

// Writes wait for the thaw, in the engine; calls return in time, reads go on.
TEST_P(TierFrozen, WritesLandAfterIt) {
  NEEDS_EXT4(disk);
  Pool pool;
  for (const bool written : {true, false}) {
    File f = file_of(disk, written);
    ASSERT_TRUE(f);
    Opened o = open_it(GetParam(), pool.a, {f.get()});
    if (!o.engine) GTEST_SKIP() << o.why;
    Engine& e = *o.engine;
    Memory from(kWrites * kMiB), to(kWrites * kMiB);
    fill_random(from.at, from.bytes, 3);
    ASSERT_TRUE(disk.freeze());
    for (unsigned i = 0; i < kWrites; i++) EXPECT_EQ(e.start(write_of(from, i)), 0);
    Landed out[8];
    std::int64_t before = now_ms();
    EXPECT_EQ(e.wait(out, 8, 200), 0);
    EXPECT_LT(now_ms() - before, 1500);
    EXPECT_EQ(e.in_flight(), kWrites);
    EXPECT_EQ(e.start({.bytes = kMiB, .data = to.at, .token = 99}), 0);
    before = now_ms();
    ASSERT_EQ(e.wait(out, 8, 5000), 1);
    EXPECT_EQ(out[0].token, 99u);
    EXPECT_EQ(out[0].result, int(kMiB));
    EXPECT_LT(now_ms() - before, 2500);
    disk.thaw();
    const auto all = land(e);
    EXPECT_EQ(all.size(), std::size_t{kWrites});
    for (auto& [token, result] : all) EXPECT_EQ(result, int(kMiB)) << token;
    for (unsigned i = 0; i < kWrites; i++) {
      Transfer t = write_of(to, i);
      t.kind = Transfer::kRead;
      EXPECT_EQ(one(e, t), int(kMiB));
    }
    EXPECT_EQ(std::memcmp(from.at, to.at, to.bytes), 0);
  }
}

// A ring's process dies in front of it: what it holds in memory comes back, although the disk hangs.
// (With threads it comes back with the disk: they are in the kernel, and it has no call for them
// that does not wait.)
TEST_P(TierFrozen, ItsProcessDies) {
  NEEDS_EXT4(disk);
  Pool pool;
  File f = file_of(disk, true);
  ASSERT_TRUE(f);
  Child process([&](Wire& wire) {
    kvshm_arena* a = attach(pool.name);
    Opened o = open_it(GetParam(), a, {f.get()});
    Memory m(kWrites * kMiB);
    if (!o.engine) return kNone;
    wire.tell();
    wire.listen();
    for (unsigned i = 0; i < kWrites; i++) CHILD_CHECK(o.engine->start(write_of(m, i)) == 0);
    Landed out[8];
    CHILD_CHECK(o.engine->wait(out, 8, 100) == 0);
    wire.tell();
    for (;;) pause();
  });
  if (!process.listen()) GTEST_SKIP() << "no such engine here";
  ASSERT_TRUE(disk.freeze());
  process.tell();
  EXPECT_TRUE(process.listen());
  ASSERT_EQ(::kill(process.pid(), SIGKILL), 0);
  EXPECT_EQ(becomes_free(pool.name, kvshm::life_byte(1), 2000), GetParam() == KVSHM_TIER_URING);
  disk.thaw();
  EXPECT_TRUE(becomes_free(pool.name, kvshm::life_byte(1), 5000));
  EXPECT_TRUE(becomes_free(pool.name, kvshm::device_byte(1), 5000));
}

// What has not begun never will, and needs no waiting for.
TEST_P(TierFrozen, IsGivenUp) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "threads that were given up look at a descriptor that the test closes";
#endif
  NEEDS_EXT4(disk);
  Pool pool;
  File f = file_of(disk, true);
  ASSERT_TRUE(f);
  Opened o = open_it(GetParam(), pool.a, {f.get()});
  if (!o.engine) GTEST_SKIP() << o.why;
  Memory m(kWrites * kMiB);
  ASSERT_TRUE(disk.freeze());
  for (unsigned i = 0; i < kWrites; i++) EXPECT_EQ(o.engine->start(write_of(m, i)), 0);
  Landed out[8];
  EXPECT_EQ(o.engine->wait(out, 8, 100), 0);
  const std::int64_t before = now_ms();
  const int fence = o.engine->abandon();
  o.engine.reset();
  EXPECT_LT(now_ms() - before, 800);
  ASSERT_GE(fence, 0);
  EXPECT_EQ(hangs_up(fence, 2000), GetParam() == KVSHM_TIER_URING);
  disk.thaw();
  EXPECT_TRUE(hangs_up(fence, 5000));
  close(fence);
}

INSTANTIATE_TEST_SUITE_P(Both, TierFrozen, testing::Values(KVSHM_TIER_URING, KVSHM_TIER_THREADS),
                         [](const testing::TestParamInfo<std::uint32_t>& i) {
                           return i.param == KVSHM_TIER_URING ? "Ring" : "Threads";
                         });
