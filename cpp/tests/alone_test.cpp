// SPDX-License-Identifier: Apache-2.0
// A handle that one thread uses alone (arena/solo.hpp), and what happens when a second one comes.
#include <unistd.h>

#include <atomic>
#include <thread>

#include "capi/call.hpp"
#include "support.hpp"

using namespace kvshm_test;

namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kKnown = false;  // nobody is ever alone
#else
constexpr bool kKnown = true;
#endif

bool is_alone(kvshm_arena* a) {
  if (!a->solo.enter(&kvshm::thread_state)) return false;
  a->solo.leave();
  return true;
}

}  // namespace

TEST(Alone, TheFirstThreadIsUntilAnotherComes) {
  Pool pool;
  make_cached(pool.a, key_of(1));
  EXPECT_EQ(is_alone(pool.a), kKnown);
  std::thread([&] { EXPECT_TRUE(present(pool.a, key_of(1))); }).join();
  EXPECT_FALSE(is_alone(pool.a));
  kvshm_handle h;
  ASSERT_EQ(kvshm_acquire(pool.a, key_of(1).data(), 0, &h), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
}

TEST(Alone, HoldsAndReleasesAreCounted) {
  Pool pool;
  make_cached(pool.a, key_of(1));
  const kvshm_stats before = own_stats(pool.a);
  kvshm_handle h[3];
  for (auto& one : h) ASSERT_EQ(kvshm_acquire(pool.a, key_of(1).data(), 0, &one), 0);
  EXPECT_EQ(available(pool.a), 15u);
  for (auto& one : h) EXPECT_EQ(drop(pool.a, one), 0);
  EXPECT_EQ(drop(pool.a, h[0]), -KVSHM_ENOTMINE);
  EXPECT_EQ(available(pool.a), 16u);
  const kvshm_stats after = own_stats(pool.a);
  EXPECT_EQ(after.lookups_total - before.lookups_total, 3u);
  EXPECT_EQ(after.hits_total - before.hits_total, 3u);
  EXPECT_EQ(after.touches_total - before.touches_total, 3u);
  EXPECT_EQ(after.released_total - before.released_total, 3u);
  EXPECT_EQ(broken(pool.a), "");
}

// The tag and the first bucket of another block's key: taken, compared, given back.
TEST(Alone, ABlockOfAnotherKeyIsGivenBack) {
  Pool pool;
  block_key mine = key_of(1), other = mine;
  other[15] ^= 0x55;
  make_cached(pool.a, mine);
  kvshm_handle h;
  EXPECT_EQ(kvshm_acquire(pool.a, other.data(), 0, &h), -ENOENT);
  EXPECT_EQ(available(pool.a), 16u);
  EXPECT_EQ(broken(pool.a), "");
  ASSERT_EQ(kvshm_acquire(pool.a, mine.data(), 0, &h), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
}

TEST(Alone, TheTextIsOfTheLastCall) {
  Pool pool;
  make_cached(pool.a, key_of(1));
  const block_key none{};
  kvshm_handle h;
  EXPECT_EQ(kvshm_acquire(pool.a, none.data(), 0, &h), -EINVAL);
  EXPECT_STRNE(kvshm_last_error(), "");
  ASSERT_EQ(kvshm_acquire(pool.a, key_of(1).data(), 0, &h), 0);
  EXPECT_STREQ(kvshm_last_error(), "");
  EXPECT_EQ(drop(pool.a, h), 0);
}

TEST(Alone, AForkedChildIsRefused) {
  Pool pool;
  make_cached(pool.a, key_of(1));
  Child child([&](Wire&) {
    kvshm_handle h;
    CHILD_CHECK(kvshm_acquire(pool.a, key_of(1).data(), 0, &h) == -KVSHM_EFORKED);
    CHILD_CHECK(kvshm_drop(pool.a, &h, 1) == -KVSHM_EFORKED);
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(is_alone(pool.a), kKnown);
}

// The moment at which the second thread comes is another one in each round.
TEST(Alone, NothingIsLostWhenItEnds) {
  Pool pool({.blocks = 4});
  make_cached(pool.a, key_of(1));
  for (unsigned round = 0; round < 300; round++) {
    kvshm_arena* a = attach(pool.name);
    ASSERT_NE(a, nullptr);
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::atomic<std::uint64_t> taken{0};
    const auto work = [&](std::uint64_t turns) {
      std::uint64_t n = 0;
      for (std::uint64_t i = 0; turns ? i < turns : !stop.load(std::memory_order_relaxed); i++) {
        kvshm_handle h;
        if (kvshm_acquire(a, key_of(1).data(), 0, &h) == 0) {
          n++;
          if (drop(a, h)) ++wrong;
        } else {
          ++wrong;
        }
      }
      taken += n;
    };
    std::thread owner([&] { work(0); });
    usleep(round * 7 % 400);
    work(50);
    stop = true;
    owner.join();
    EXPECT_EQ(wrong.load(), 0);
    const kvshm_stats s = own_stats(a);
    EXPECT_EQ(s.hits_total, taken.load());
    EXPECT_EQ(s.released_total, taken.load());
    ASSERT_EQ(kvshm_close(a, 1000), 0);
    ASSERT_EQ(available(pool.a), 4u) << "round " << round;
  }
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Alone, AnotherThreadClosesUnderTheOwner) {
  Pool pool;
  make_cached(pool.a, key_of(1));
  for (int round = 0; round < 20; round++) {
    kvshm_arena* a = attach(pool.name);
    ASSERT_NE(a, nullptr);
    std::atomic<int> last{0}, ready{0};
    std::thread owner([&] {
      kvshm_handle h;
      int rc = 0;
      while (rc == 0) {
        if ((rc = kvshm_acquire(a, key_of(1).data(), 0, &h)) == 0) rc = kvshm_drop(a, &h, 1);
        ready = 1;
      }
      last = rc;
    });
    while (!ready) usleep(50);
    EXPECT_EQ(kvshm_close(a, 5000), 0);
    owner.join();
    EXPECT_EQ(last.load(), -KVSHM_ECLOSED);
  }
  EXPECT_EQ(available(pool.a), 16u);
}
