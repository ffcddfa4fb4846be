// SPDX-License-Identifier: Apache-2.0
// The tier from end to end: down, up, over restarts, and with damage.
#include "tier/tier.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include "tier_support.hpp"

namespace {
using namespace kvshm_test;

class TierBy : public testing::TestWithParam<std::uint32_t> {
 protected:
  void SetUp() override {
    TierFile file("probe");
    Pool pool;
    const int rc = open_tier(pool.a, file.path, spec());
    if (rc == -KVSHM_EUNSUPPORTED && GetParam() == KVSHM_TIER_URING)
      GTEST_SKIP() << kvshm_last_error();
    ASSERT_EQ(rc, 0) << kvshm_last_error();
  }
  TierSpec spec() const {
    TierSpec s;
    s.engine = GetParam();
    return s;
  }
};

TEST_P(TierBy, ABlockComesBackFromDisk) {
  TierFile file("back");
  Pool pool({32, 4096});
  ASSERT_EQ(open_tier(pool.a, file.path, spec()), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 20);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0) << kvshm_last_error();
  EXPECT_EQ(stats(pool.a).tier_stored_total, 20u);
  EXPECT_EQ(kvshm_clear(pool.a), 20);
  const Loaded l = load_chain(pool.a, keys);
  EXPECT_EQ(l.promised, 20);
  EXPECT_EQ(l.held, 20);
  EXPECT_EQ(l.right, 20u);
  EXPECT_EQ(stats(pool.a).tier_loaded_total, 20u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST_P(TierBy, OddSizesGoByABounceBuffer) {
  for (const std::uint64_t bytes : {64, 512, 4032, 4160, 12288 + 64}) {
    TierFile file("odd");
    Pool pool({16, bytes});
    ASSERT_EQ(open_tier(pool.a, file.path, spec()), 0) << kvshm_last_error();
    ASSERT_TRUE(await_tier(pool.a));
    const keys_t keys = keys_of(bytes, 8);
    cache_chain(pool.a, keys);
    ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
    EXPECT_EQ(kvshm_clear(pool.a), 8);
    EXPECT_EQ(load_chain(pool.a, keys).right, 8u) << bytes;
  }
}

TEST_P(TierBy, LargeBlocksGoInPieces) {
  TierFile file("large");
  Pool pool({4, 5 << 20});
  TierSpec s = spec();
  s.bytes = 64 << 20;
  ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 3);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  EXPECT_EQ(kvshm_clear(pool.a), 3);
  EXPECT_EQ(load_chain(pool.a, keys).right, 3u);
}

TEST_P(TierBy, MemoryMayBeSmallerThanWhatIsServed) {
  TierFile file("small");
  Pool pool({16, 4096});
  ASSERT_EQ(open_tier(pool.a, file.path, spec()), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  for (std::uint64_t c = 0; c < 20; c++) {
    cache_chain(pool.a, keys_of(100 * c + 1, 8));
    ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  }
  for (std::uint64_t c = 0; c < 20; c++) {
    const Loaded l = load_chain(pool.a, keys_of(100 * c + 1, 8));
    EXPECT_EQ(l.right, 8u) << c;
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, TierBy, testing::Values(KVSHM_TIER_URING, KVSHM_TIER_THREADS),
                         [](const auto& i) {
                           return i.param == KVSHM_TIER_URING ? "Uring" : "Threads";
                         });

TEST(Tier, HitsGoOnAfterAReboot) {
  TierFile file("reboot");
  const keys_t keys = keys_of(1, 30);
  {
    Pool pool({32, 4096});
    ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
    ASSERT_TRUE(await_tier(pool.a));
    cache_chain(pool.a, keys);
    ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
    reboot(pool);
  }
  Pool pool({32, 4096});  // another arena: all of shared memory is gone
  ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  EXPECT_EQ(tier_of(pool.a).slots_ready, 30u);
  EXPECT_EQ(load_chain(pool.a, keys).right, 30u);
}

// Every slot in use, everybody ends, also by SIGKILL, and all of shared memory is gone or still there.
TEST(Tier, AFullTierServesAfterARestart) {
  for (const bool reboot : {false, true}) {
    TierFile file("full");
    Pool pool({32, 4096});
    TierSpec s;
    s.bytes = 300 * 4096;
    {
      Child writer([&](Wire& wire) {
        kvshm_arena* a = attach(pool.name);
        CHILD_CHECK(a && open_tier(a, file.path, s) == 0 && await_tier(a));
        for (std::uint64_t c = 0; c < 60; c++) {
          cache_chain(a, keys_of(1 + c * 8, 8));
          CHILD_CHECK(kvshm_tier_drain(a, 10000) == 0);
        }
        wire.tell();
        wire.listen(60000);
        return 0;
      });
      ASSERT_EQ(writer.listen(60000), '.');
      writer.kill();
    }
    if (reboot) {
      kvshm_clear(pool.a);
      EXPECT_EQ(kvshm_remove((pool.name + "-g3").c_str(), nullptr, 1), 0);
    }
    ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
    ASSERT_TRUE(await_tier(pool.a));
    const kvshm_tier t = tier_of(pool.a);
    EXPECT_GE(t.slots_ready, t.slots * 9 / 10) << reboot;
    kvshm_clear(pool.a);
    std::uint32_t right = 0;
    std::int64_t held = 0;
    for (std::uint64_t c = 0; c < 60; c++) {
      const Loaded l = load_chain(pool.a, keys_of(1 + c * 8, 8));
      right += l.right;
      held += l.held;
    }
    EXPECT_EQ(right, held) << "bytes of their keys";
    EXPECT_GE(right, t.slots / 2) << reboot;
    EXPECT_EQ(stats(pool.a).tier_damaged_total, 0u) << reboot;
  }
}

TEST(Tier, TwoArenasOnOneFileAreRefused) {
  TierFile file("two");
  Pool one({16, 4096}), two({16, 4096});
  ASSERT_EQ(open_tier(one.a, file.path), 0) << kvshm_last_error();
  EXPECT_EQ(open_tier(two.a, file.path), -KVSHM_EINUSE);
  const std::string text = kvshm_last_error();
  EXPECT_NE(text.find(one.name), std::string::npos) << text;
  EXPECT_NE(text.find(two.name), std::string::npos) << text;
}

TEST(Tier, AFlippedBitIsAMissAndTheSlotIsFreed) {
  TierFile file("flip");
  Pool pool({32, 4096});
  ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 8);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  ASSERT_EQ(kvshm_clear(pool.a), 8);
  const int fd = open(file.path.c_str(), O_RDWR);
  ASSERT_GE(fd, 0);
  struct stat st;
  fstat(fd, &st);
  const block_key k = keys[3];
  // The payload of block 3: found by its first bytes.
  std::vector<char> all(std::size_t(st.st_size));
  ASSERT_EQ(pread(fd, all.data(), all.size(), 0), ssize_t(all.size()));
  (void)k;
  const kvshm_tier t = tier_of(pool.a);
  std::uint64_t at = 0;
  for (std::uint64_t off = std::uint64_t(st.st_size) - t.slots * t.slot_bytes;
       off < std::uint64_t(st.st_size); off += t.slot_bytes) {
    std::vector<char> want(4096);
    const kvshm_handle h = make_held(pool.a, k);
    write_payload(pool.a, h.id, k);
    std::memcpy(want.data(), kvshm_block_data(pool.a, h.id), 4096);
    drop(pool.a, h);
    kvshm_clear(pool.a);
    if (std::memcmp(all.data() + off, want.data(), 4096) == 0) at = off;
    if (at) break;
  }
  ASSERT_NE(at, 0u);
  // They were offered again, and the tier may have been looking at one: then it is in memory still.
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  kvshm_clear(pool.a);
  all[at + 1000] ^= 4;
  ASSERT_EQ(pwrite(fd, all.data() + at + 1000, 1, off_t(at + 1000)), 1);
  fsync(fd);
  close(fd);
  Loaded l = load_chain(pool.a, keys);
  EXPECT_EQ(l.promised, 8);
  EXPECT_EQ(l.held, 3);
  EXPECT_EQ(l.failed, 1u);
  EXPECT_EQ(l.right, 7u);
  EXPECT_EQ(stats(pool.a).tier_damaged_total, 1u);
  EXPECT_EQ(kvshm_clear(pool.a), 7);
  l = load_chain(pool.a, keys);
  EXPECT_EQ(l.promised, 3) << "the damaged slot is not asked for again";
}

// A child that lives on keeps neither the file's lock nor anything of a load.
TEST(Tier, AForkedChildHoldsNothing) {
  TierFile file("fork");
  Pool two({16, 4096});
  {
    Pool one({16, 4096});
    ASSERT_EQ(open_tier(one.a, file.path), 0) << kvshm_last_error();
    ASSERT_TRUE(await_tier(one.a));
    const keys_t keys = keys_of(1, 4);
    cache_chain(one.a, keys);
    kvshm_load* load = nullptr;
    ASSERT_EQ(kvshm_match_load(one.a, raw(keys), 4, 0, 0, &load, nullptr), 4);
    Child child([&](Wire& wire) {
      kvshm_lease lease;
      CHILD_CHECK(kvshm_load_wait(load, 10) == -KVSHM_EFORKED);
      CHILD_CHECK(kvshm_load_status(load, nullptr, nullptr) == -KVSHM_EFORKED);
      CHILD_CHECK(kvshm_load_lease(load, &lease) == -KVSHM_EFORKED);
      kvshm_load_free(load);
      CHILD_CHECK(kvshm_tier_drain(one.a, 10) == -KVSHM_EFORKED);
      wire.tell();
      wire.listen(60000);
      return 0;
    });
    ASSERT_EQ(child.listen(), '.');
    kvshm_load_free(load);
    const std::string image = tier_of(one.a).image;
    one.leave();
    kvshm_remove(image.c_str(), nullptr, 0);
    EXPECT_EQ(open_tier(two.a, file.path), 0) << kvshm_last_error();
    child.tell();
    EXPECT_EQ(child.wait(), 0);
  }
}

// Files of a tier, one a device: slots lie in them by turns.
TEST(Tier, SeveralFilesAreStriped) {
  TierFile a("stripe"), b("stripe"), c("stripe");
  const char* paths[] = {a.path.c_str(), b.path.c_str(), c.path.c_str()};
  const keys_t keys = keys_of(1, 24);
  kvshm_tier_options o = KVSHM_TIER_OPTIONS_INIT;
  o.paths = paths;
  o.npaths = 3;
  o.bytes = 3 << 20;
  {
    Pool pool({32, 4096});
    ASSERT_EQ(kvshm_tier_open(pool.a, &o), 0) << kvshm_last_error();
    ASSERT_TRUE(await_tier(pool.a));
    EXPECT_EQ(tier_of(pool.a).files, 3u);
    cache_chain(pool.a, keys);
    ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
    reboot(pool);
  }
  Pool pool({32, 4096});
  std::swap(paths[0], paths[1]);
  EXPECT_EQ(kvshm_tier_open(pool.a, &o), -KVSHM_EGEOMETRY);
  std::swap(paths[0], paths[1]);
  ASSERT_EQ(kvshm_tier_open(pool.a, &o), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  EXPECT_EQ(load_chain(pool.a, keys).right, 24u);
}

TEST(Tier, WhatIsNoTierFileIsLeftAlone) {
  TierFile file("foreign");
  const int fd = open(file.path.c_str(), O_RDWR | O_CREAT, 0600);
  const std::string text(10000, 'x');
  ASSERT_EQ(write(fd, text.data(), text.size()), ssize_t(text.size()));
  Pool pool({16, 4096});
  EXPECT_EQ(open_tier(pool.a, file.path), -KVSHM_ELAYOUT);
  char back[4] = {};
  EXPECT_EQ(pread(fd, back, 4, 0), 4);
  EXPECT_EQ(std::string(back, 4), "xxxx");
  close(fd);
}

TEST(Tier, ASmallerBudgetKeepsTheFirstSlots) {
  TierFile file("budget");
  const keys_t keys = keys_of(1, 32);
  {
    Pool pool({64, 4096});
    TierSpec s;
    s.bytes = 64 * 4096;
    ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
    ASSERT_TRUE(await_tier(pool.a));
    cache_chain(pool.a, keys);
    ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
    pool.leave();
    kvshm_remove((pool.name + "-g3").c_str(), nullptr, 0);
  }
  Pool pool({64, 4096});
  TierSpec s;
  s.bytes = 24 * 4096;
  ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const kvshm_tier t = tier_of(pool.a);
  EXPECT_LT(t.slots, 24u);
  EXPECT_GT(t.slots_ready, 8u);
  struct stat st;
  ASSERT_EQ(stat(file.path.c_str(), &st), 0);
  EXPECT_LE(std::uint64_t(st.st_size), s.bytes);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
}

// A tier that is slower than computing anew is said to be, and left alone but for a try now and then.
TEST(Tier, ASlowTierIsNotLoadedFrom) {
  TierFile file("slow");
  Pool pool({32, 1 << 20});
  kvshm_tier_options o = KVSHM_TIER_OPTIONS_INIT;
  const char* paths[] = {file.path.c_str()};
  o.paths = paths;
  o.npaths = 1;
  o.bytes = 64 << 20;
  o.min_speed = std::uint64_t{1} << 50;  // no drive makes that
  ASSERT_EQ(kvshm_tier_open(pool.a, &o), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 24);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
  ASSERT_EQ(kvshm_clear(pool.a), 24);
  EXPECT_EQ(load_chain(pool.a, keys).right, 24u) << "its speed is not known yet";
  ASSERT_TRUE(await_tier(pool.a, KVSHM_TIER_SLOW));
  EXPECT_GT(tier_of(pool.a).read_speed, 0u);
  ASSERT_EQ(kvshm_clear(pool.a), 24);
  const keys_t two(keys.begin(), keys.begin() + 2);
  EXPECT_EQ(load_chain(pool.a, two).right, 2u) << "the try";
  ASSERT_EQ(kvshm_clear(pool.a), 2);
  EXPECT_EQ(stats(pool.a).tier_skipped_total, 0u);
  EXPECT_EQ(load_chain(pool.a, keys).promised, 0);
  EXPECT_EQ(stats(pool.a).tier_skipped_total, 1u);
}

TEST(Tier, TheImageGoesWithItsArena) {
  TierFile file("gone");
  Pool pool({16, 4096}), lookalike({16, 4096});
  ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
  pool.leave();
  const std::string image = "/dev/shm/kvshm." + pool.name + "-g3";
  EXPECT_EQ(access(image.c_str(), F_OK), 0);
  EXPECT_EQ(kvshm_remove(pool.name.c_str(), nullptr, 0), 0) << kvshm_last_error();
  EXPECT_NE(access(image.c_str(), F_OK), 0);
  EXPECT_EQ(access(file.path.c_str(), F_OK), 0);
  // An arena that only has such a name is nobody's image.
  kvshm_options o = options({16, 64});
  kvshm_arena* other = nullptr;
  ASSERT_EQ(kvshm_create(&other, (lookalike.name + "-g3").c_str(), &o), 0);
  kvshm_close(other, 1000);
  lookalike.leave();
  EXPECT_EQ(kvshm_remove(lookalike.name.c_str(), nullptr, 0), 0);
  EXPECT_EQ(kvshm_remove((lookalike.name + "-g3").c_str(), nullptr, 0), 0);
}

}  // namespace
