// SPDX-License-Identifier: Apache-2.0
// Threads of one process on one mapping: for ThreadSanitizer, which tells races by address and so
// sees none between two mappings of one page. What the threads do is checked in every build.
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include "support.hpp"

using namespace kvshm_test;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kTurns = 1500;
#else
constexpr int kTurns = 8000;
#endif
constexpr int kThreads = 4;

// Few keys and fewer blocks, so that all of them meet.
struct Worker {
  kvshm_arena* a;
  std::mt19937 random;
  std::atomic<int>* wrong;

  void check(std::uint32_t id, const block_key& key) {
    if (!payload_right(a, id, key)) ++*wrong;
  }

  void fill(const block_key& key, int policy, std::uint32_t flags) {
    kvshm_handle h;
    auto o = sized<kvshm_fill_options>();
    o.flags = flags;
    if (kvshm_allocate(a, 1, raw(key), &o, &h, nullptr, nullptr)) return;
    if (random() % 8 == 0) {
      if (kvshm_abort(a, &h, 1)) ++*wrong;
      return;
    }
    write_payload(a, h.id, key);
    if (kvshm_register(a, &h, 1, nullptr, policy, &h, nullptr) != 1) {
      ++*wrong;
      return;
    }
    check(h.id, key);
    if (kvshm_drop(a, &h, 1)) ++*wrong;
  }

  void look(const keys_t& keys) {
    std::vector<std::uint32_t> ids(keys.size());
    kvshm_lease lease;
    kvshm_handle pending;
    const std::int64_t n = kvshm_match_with(a, raw(keys), std::uint32_t(keys.size()), 0, 1,
                                            ids.data(), &lease, &pending);
    if (n < 0) ++*wrong;
    for (std::int64_t i = 0; i < n; i++) check(ids[std::size_t(i)], keys[std::size_t(i)]);
    if (n > 0 && kvshm_release(a, lease)) ++*wrong;
    if (pending.seq) kvshm_wait(a, pending, 2);
    if (pending.seq && random() % 2 && kvshm_fill_join(a, pending) == 0)
      if (kvshm_abort(a, &pending, 1)) ++*wrong;
  }

  void one(const block_key& key) {
    kvshm_handle h;
    if (kvshm_acquire(a, key.data(), 0, &h)) return;
    check(h.id, key);
    if (random() % 4 == 0) kvshm_set_no_cache(a, h, int(random() % 2));
    if (kvshm_upgrade(a, h, 0)) {
      ++*wrong;  // it is held
    } else if (kvshm_drop(a, &h, 1)) {
      ++*wrong;
    }
    if (kvshm_drop(a, &h, 1)) ++*wrong;
    if (kvshm_upgrade(a, h, 0) == 0) {  // by the weak handle: the same bytes, or nothing
      check(h.id, key);
      if (kvshm_drop(a, &h, 1)) ++*wrong;
    }
  }

  void turn() {
    const block_key key = key_of(random() % 6);
    switch (random() % 8) {
      case 0:
        return fill(key, KVSHM_ALLOW, KVSHM_QUIET);
      case 1:
        return fill(key, KVSHM_REJECT, KVSHM_QUIET);
      case 2:
        return fill(key, KVSHM_ALLOW, 0);
      case 3:
      case 4:
        return look({key, key_of(random() % 6), key_of(random() % 6)});
      case 5:
        return one(key);
      case 6:
        kvshm_evict(a, raw(key), 1);
        return;
      default:
        kvshm_reap(a, nullptr);
        stats(a);
    }
  }
};

void hammer(kvshm_arena* const* arenas, int n) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; t++)
    threads.emplace_back([&, t] {
      Worker w{arenas[t % n], std::mt19937(std::uint32_t(1000 + t)), &wrong};
      for (int i = 0; i < kTurns; i++) w.turn();
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  const kvshm_stats s = stats(arenas[0]);
  EXPECT_EQ(s.blocks_held, 0u) << "a hold was lost";
  EXPECT_EQ(s.blocks_filling, 0u);
  EXPECT_EQ(broken(arenas[0]), "");
  EXPECT_EQ(wrong_payloads(arenas[0]), "");
  EXPECT_EQ(unfindable(arenas[0]), "");
  EXPECT_GT(s.hits_total, 0u);
  EXPECT_GT(s.evicted_total + s.removed_total, 0u);
}

}  // namespace

TEST(Threads, OneMappingFewBlocks) {
  Pool pool({.blocks = 5, .block_bytes = 128});
  hammer(&pool.a, 1);
}

TEST(Threads, WithTheHelperThread) {
  Pool pool({.blocks = 8, .block_bytes = 128, .flags = 0});
  hammer(&pool.a, 1);
}

TEST(Threads, TwoAttachments) {
  Pool pool({.blocks = 6, .block_bytes = 128});
  kvshm_arena* const both[2] = {pool.a, pool.another()};
  hammer(both, 2);
}

// One filler, many waiters on one mapping: what they then read was written before the publish.
TEST(Threads, WaitersReadWhatWasPublished) {
  Pool pool({.blocks = 4, .block_bytes = 4096});
  for (std::uint64_t round = 0; round < 100; round++) {
    const block_key key = key_of(round);
    kvshm_handle h;
    ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key), nullptr, &h, nullptr, nullptr), 0);
    std::atomic<int> right{0};
    std::vector<std::thread> waiters;
    for (int t = 0; t < 3; t++)
      waiters.emplace_back([&] {
        if (kvshm_wait(pool.a, h, 5000)) return;
        kvshm_handle found;
        if (kvshm_acquire(pool.a, key.data(), 0, &found)) return;
        right += payload_right(pool.a, found.id, key);
        kvshm_drop(pool.a, &found, 1);
      });
    write_payload(pool.a, h.id, key);
    ASSERT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr), 1);
    for (auto& t : waiters) t.join();
    ASSERT_EQ(right, 3) << round;
    EXPECT_EQ(drop(pool.a, h), 0);
  }
  EXPECT_EQ(broken(pool.a), "");
}

// Leases are read, cut and given back by many threads at once: one release succeeds.
TEST(Threads, LeasesBetweenThreads) {
  Pool pool({.blocks = 16, .block_bytes = 64});
  const keys_t keys = keys_of(0, 8);
  for (auto& k : keys) make_cached(pool.a, k);
  for (int round = 0; round < kTurns / 10; round++) {
    std::uint32_t ids[8];
    kvshm_lease lease;
    ASSERT_EQ(kvshm_match(pool.a, raw(keys), 8, ids, &lease), 8);
    std::atomic<int> released{0}, ready{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; t++)
      threads.emplace_back([&, t] {
        ready++;
        while (ready < 3) std::this_thread::yield();
        std::uint32_t seen[8];
        if (t == 0) {
          kvshm_lease_ids(pool.a, lease, seen, 8);
          kvshm_lease_trim(pool.a, lease, 4);
        }
        if (t > 0) released += kvshm_release(pool.a, lease) == 0;
      });
    for (auto& t : threads) t.join();
    ASSERT_EQ(released, 1) << "round " << round;
    ASSERT_EQ(stats(pool.a).blocks_held, 0u) << "round " << round;
  }
  EXPECT_EQ(broken(pool.a), "");
}

// A release that comes while another thread cuts the lease is late, not refused: refused, it would
// leave holds that nobody can give back.
TEST(Threads, AReleaseDuringATrimIsNotLost) {
  Pool pool({.blocks = 4, .block_bytes = 64});
  const keys_t keys = keys_of(0, 3);
  for (auto& k : keys) make_cached(pool.a, k);
  std::uint32_t ids[3];
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(keys), 3, ids, &lease), 3);
  std::thread releaser;
  std::atomic<int> rc{1};
  {
    bool once = false;
    Steps steps([&](const char* name) {
      if (once || std::strcmp(name, "drop.last") != 0) return;
      once = true;
      releaser = std::thread([&] { rc = kvshm_release(pool.a, lease); });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    });
    EXPECT_EQ(kvshm_lease_trim(pool.a, lease, 1), 0);
    ASSERT_TRUE(once);
    releaser.join();
  }
  EXPECT_EQ(rc, 0);
  EXPECT_EQ(stats(pool.a).blocks_held, 0u);
  EXPECT_EQ(kvshm_release(pool.a, lease), -EBADF);
}

// Two readers of one lease: neither is told that it was released.
TEST(Threads, ALeaseIsReadByTwo) {
  Pool pool({.blocks = 4, .block_bytes = 64});
  make_cached(pool.a, key_of(1));
  std::uint32_t id;
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(key_of(1)), 1, &id, &lease), 1);
  std::atomic<int> refused{0}, ready{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; t++)
    threads.emplace_back([&] {
      ready++;
      while (ready < 3) std::this_thread::yield();
      std::uint32_t seen;
      for (int i = 0; i < 20 * kTurns; i++)
        refused += kvshm_lease_ids(pool.a, lease, &seen, 1) != 1;
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
}

TEST(Threads, CloseWaitsForCallsThatRun) {
  Pool pool({.blocks = 4, .block_bytes = 64});
  for (int round = 0; round < 20; round++) {
    kvshm_arena* a = attach(pool.name);
    ASSERT_NE(a, nullptr);
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0}, closed{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; t++)
      threads.emplace_back([&, t] {
        while (!stop) {
          const block_key key = key_of(std::uint64_t(t));
          kvshm_handle h;
          int rc = kvshm_allocate(a, 1, raw(key), nullptr, &h, nullptr, nullptr);
          if (rc == 0) rc = kvshm_abort(a, &h, 1);
          if (rc == -KVSHM_ECLOSED) {
            closed++;
            return;
          }
          if (rc && rc != -KVSHM_ENOSPACE) wrong++;
        }
      });
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 5));
    EXPECT_EQ(kvshm_close(a, 5000), 0);
    stop = true;
    for (auto& t : threads) t.join();
    EXPECT_EQ(wrong, 0);
    // Whatever they had was given back by the close.
    ASSERT_EQ(stats(pool.a).blocks_filling, 0u);
    ASSERT_EQ(broken(pool.a), "");
  }
}

TEST(Threads, CloseGivesUpAtItsTimeOut) {
  Pool pool({.blocks = 4});
  kvshm_arena* a = pool.another();
  kvshm_handle h;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key_of(1)), nullptr, &h, nullptr, nullptr), 0);
  std::thread waiter([&] { EXPECT_EQ(kvshm_wait(a, h, 600), -ETIMEDOUT); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::int64_t from = now_ms();
  EXPECT_EQ(kvshm_close(a, 100), -EBUSY);
  EXPECT_LT(now_ms() - from, 400);
  EXPECT_GE(available(a), 3u);  // nothing changed: the handle works on
  waiter.join();
  EXPECT_EQ(kvshm_abort(pool.a, &h, 1), 0);
}
