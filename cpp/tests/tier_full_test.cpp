// SPDX-License-Identifier: Apache-2.0
// A tier whose file system has no room for its budget: what fits is served, nothing partial is seen,
// and it says "no space" until there is room again.
#include <sys/statvfs.h>

#include "mount_support.hpp"
#include "tier_support.hpp"

namespace {
using namespace kvshm_test;

constexpr std::uint64_t kRoom = 32, kBudget = 64;  // MiB

struct Shape {
  const char* name;
  std::uint64_t block_bytes, length;  // of a chain
  std::uint32_t engine, direct, sync;
};

keys_t chain(std::uint64_t c, std::uint64_t n) { return keys_of(1 + c * 100, n); }

// Room that can be given back from outside.
void fill_up(const std::string& path, std::uint64_t mib) {
  kvshm::File f(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(posix_fallocate(f.get(), 0, off_t(mib * kMiB)), 0);
}

class TierFull : public testing::TestWithParam<Shape> {
 protected:
  // Stores chains first .. last; each waits for its turn.
  void store(kvshm_arena* a, std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t c = first; c < last; c++) {
      cache_chain(a, chain(c, GetParam().length));
      ASSERT_EQ(kvshm_tier_drain(a, 20000), 0) << kvshm_last_error();
      no_space_ |= tier_of(a).state == KVSHM_TIER_NO_SPACE;
    }
  }
  // What of them is served, all with the right bytes.
  std::uint64_t read(kvshm_arena* a, std::uint64_t first, std::uint64_t last) {
    EXPECT_GE(kvshm_clear(a), 0);
    std::uint64_t right = 0;
    for (std::uint64_t c = first; c < last; c++) {
      const Loaded l = load_chain(a, chain(c, GetParam().length));
      EXPECT_EQ(l.failed, 0u) << c;
      EXPECT_EQ(std::int64_t(l.right), l.promised) << c;
      right += l.right;
    }
    return right;
  }
  bool no_space_ = false;
};

TEST_P(TierFull, ServesWhatFits) {
  const Shape& p = GetParam();
  NEEDS_EXT4(disk, kRoom);
  fill_up(disk.file("filler"), 12);
  Pool pool({4 * p.length, p.block_bytes});
  TierSpec s;
  s.bytes = kBudget * kMiB;
  s.engine = p.engine;
  s.direct = p.direct;
  s.sync = p.sync;
  const int rc = open_tier(pool.a, disk.file(), s);
  if (rc == -KVSHM_EUNSUPPORTED) GTEST_SKIP() << kvshm_last_error();
  ASSERT_EQ(rc, 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const std::uint64_t chains = kBudget * kMiB / p.block_bytes / p.length;
  store(pool.a, 0, chains);
  EXPECT_TRUE(no_space_);
  EXPECT_EQ(tier_of(pool.a).state, KVSHM_TIER_NO_SPACE);
  const kvshm_stats st = stats(pool.a);
  EXPECT_GT(st.tier_store_failed_total, 0u);
  EXPECT_EQ(st.tier_stored_total + st.tier_store_failed_total + st.tier_dropped_total +
                st.tier_present_total,
            st.tier_offered_total);
  const std::uint64_t full = tier_of(pool.a).slots_ready;
  EXPECT_GT(full * p.block_bytes, 8 * kMiB);
  EXPECT_GE(read(pool.a, 0, chains), full / 2);
  EXPECT_EQ(stats(pool.a).tier_damaged_total, 0u);

  // It stays so while there is no room, and takes new blocks in place of old ones all the same.
  for (std::uint64_t round = 0; round < 3; round++) {
    store(pool.a, chains + round * 4, chains + round * 4 + 4);
    EXPECT_GE(read(pool.a, chains + round * 4, chains + round * 4 + 4), p.length) << round;
    EXPECT_EQ(tier_of(pool.a).state, KVSHM_TIER_NO_SPACE);
  }

  std::filesystem::remove(disk.file("filler"));
  std::uint64_t next = 2 * chains;
  const std::int64_t since = now_ms();
  for (; now_ms() < since + 12000 && tier_of(pool.a).state != KVSHM_TIER_OK; next++) {
    store(pool.a, next, next + 1);
    usleep(100000);
  }
  EXPECT_LT(now_ms() - since, 10000);
  const std::uint64_t more = 7 * kMiB / p.block_bytes / p.length;
  store(pool.a, next, next + more);
  EXPECT_EQ(tier_of(pool.a).state, KVSHM_TIER_OK);
  EXPECT_GE(tier_of(pool.a).slots_ready * p.block_bytes, full * p.block_bytes + 5 * kMiB);
  EXPECT_GE(read(pool.a, next, next + more), more * p.length * 3 / 4);
  EXPECT_EQ(stats(pool.a).tier_damaged_total, 0u);
  EXPECT_EQ(broken(pool.a), "");
  EXPECT_EQ(broken_image(pool.a), "");
  std::printf("%llu of %llu slots when it was full; \"ok\" %lld ms after there was room\n",
              (unsigned long long)full, (unsigned long long)tier_of(pool.a).slots,
              (long long)(now_ms() - since));
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, TierFull,
    testing::Values(Shape{"Ring", 65536, 8, KVSHM_TIER_URING, KVSHM_AUTO, 0},
                    Shape{"Threads", 65536, 8, KVSHM_TIER_THREADS, KVSHM_AUTO, 0},
                    Shape{"RingInPieces", 5 * kMiB, 1, KVSHM_TIER_URING, KVSHM_AUTO, 0},
                    Shape{"ThreadsBuffered", 65536, 8, KVSHM_TIER_THREADS, KVSHM_OFF, 1}),
    [](const auto& i) { return std::string(i.param.name); });

// Without traffic, too, it does not say so for ever.
TEST(TierFullAtRest, ClearsByItself) {
  NEEDS_EXT4(disk, kRoom);
  fill_up(disk.file("filler"), 24);
  Pool pool({64, 65536});
  TierSpec s;
  s.bytes = kBudget * kMiB;
  ASSERT_EQ(open_tier(pool.a, disk.file(), s), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  for (std::uint64_t c = 0; c < 12; c++) {
    cache_chain(pool.a, chain(c, 8));
    ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
  }
  ASSERT_EQ(tier_of(pool.a).state, KVSHM_TIER_NO_SPACE);
  std::filesystem::remove(disk.file("filler"));
  EXPECT_TRUE(await_tier(pool.a, KVSHM_TIER_OK, 10000));
}

// Item 58: as many inodes as there are blocks are not needed; and their want is told apart.
TEST(TierFullOfInodes, OneFileHoldsAllBlocks) {
  NEEDS_EXT4(disk, 64, 0, 64);
  struct statvfs before, after;
  ASSERT_EQ(statvfs(disk.path().c_str(), &before), 0);
  {
    Pool pool({256, 4096});
    TierSpec s;
    s.bytes = 20 << 20;
    ASSERT_EQ(open_tier(pool.a, disk.file(), s), 0) << kvshm_last_error();
    ASSERT_TRUE(await_tier(pool.a));
    for (std::uint64_t c = 0; c < 30; c++) {
      cache_chain(pool.a, keys_of(1 + c * 100, 100));
      ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
    }
    EXPECT_EQ(tier_of(pool.a).slots_ready, 3000u);
  }
  ASSERT_EQ(statvfs(disk.path().c_str(), &after), 0);
  EXPECT_EQ(before.f_ffree - after.f_ffree, 1u);
  for (unsigned i = 0;; i++) {
    kvshm::File f(open(disk.file(("x" + std::to_string(i)).c_str()).c_str(),
                       O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!f) break;
    ASSERT_LT(i, 1000u);
  }
  Pool other({16, 4096});
  EXPECT_EQ(open_tier(other.a, disk.file("another")), -ENOSPC);
  EXPECT_NE(std::string(kvshm_last_error()).find("inode"), std::string::npos) << kvshm_last_error();
}

}  // namespace
