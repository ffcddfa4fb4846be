// SPDX-License-Identifier: Apache-2.0
// Semantics 1-8: allocation is all or nothing, and counts stay exact.
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>
#include <thread>

#include "support.hpp"

using namespace kvshm_test;

TEST(Semantics, S01_AllocateAllThenRefused) {
  Pool pool({.blocks = 16});
  const handles_t h = fill_blocks(pool.a, 16);
  std::set<std::uint32_t> ids;
  for (auto& x : h) ids.insert(x.id);
  EXPECT_EQ(ids.size(), 16u);
  EXPECT_EQ(available(pool.a), 0u);
  const kvshm_stats before = stats(pool.a);
  kvshm_handle one = {7, 7, 7};
  EXPECT_EQ(kvshm_allocate(pool.a, 1, nullptr, nullptr, &one, nullptr, nullptr), -KVSHM_ENOSPACE);
  EXPECT_STRNE(kvshm_last_error(), "");
  const kvshm_stats after = stats(pool.a);
  EXPECT_EQ(after.blocks_filling, before.blocks_filling);
  EXPECT_EQ(after.allocated_total, before.allocated_total);
  EXPECT_EQ(after.alloc_refused_total, before.alloc_refused_total + 1);
  EXPECT_EQ(kvshm_allocate(pool.a, 17, nullptr, nullptr, &one, nullptr, nullptr), -KVSHM_ETOOLARGE);
  EXPECT_EQ(abort_fills(pool.a, h), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S02_AllocateNoneChangesNothing) {
  Pool pool;
  const kvshm_stats before = stats(pool.a);
  EXPECT_EQ(kvshm_allocate(pool.a, 0, nullptr, nullptr, nullptr, nullptr, nullptr), 0);
  const kvshm_stats after = stats(pool.a);
  EXPECT_EQ(std::memcmp(&before, &after, sizeof before), 0);
}

TEST(Semantics, S03_RefusedAllocationLeavesEverythingAsItWas) {
  Pool pool({.blocks = 8});
  const handles_t held = fill_blocks(pool.a, 3);  // 5 are left: 3 inactive, 2 free
  const keys_t keys = keys_of(100, 3);
  for (auto& k : keys) make_cached(pool.a, k);
  const kvshm_stats before = stats(pool.a);
  EXPECT_EQ(before.blocks_free, 2u);
  EXPECT_EQ(before.blocks_inactive, 3u);
  std::vector<kvshm_handle> out(6);
  EXPECT_EQ(kvshm_allocate(pool.a, 6, nullptr, nullptr, out.data(), nullptr, nullptr),
            -KVSHM_ENOSPACE);
  const kvshm_stats after = stats(pool.a);
  EXPECT_EQ(after.blocks_free, 2u);
  EXPECT_EQ(after.blocks_inactive, 3u);
  EXPECT_EQ(after.evicted_total, 0u);
  for (auto& k : keys) EXPECT_TRUE(present(pool.a, k));
  EXPECT_EQ(wrong_payloads(pool.a), "");
  EXPECT_EQ(abort_fills(pool.a, held), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S04_FreeBlocksFirstThenExactlyTheEvictionsNeeded) {
  Pool pool({.blocks = 5});
  const keys_t keys = keys_of(0, 3);
  for (auto& k : keys) make_cached(pool.a, k);
  std::set<std::uint32_t> free_ids;
  for (std::uint32_t id = 0; id < 5; id++)
    if (block(pool.a, id).state == KVSHM_FREE) free_ids.insert(id);
  ASSERT_EQ(free_ids.size(), 2u);
  keys_t gone(4);
  kvshm_evicted ev = {sizeof ev, raw(gone), gone.size(), 99};
  handles_t h(4);
  ASSERT_EQ(kvshm_allocate(pool.a, 4, nullptr, nullptr, h.data(), nullptr, &ev), 0);
  EXPECT_EQ((std::set<std::uint32_t>{h[0].id, h[1].id}), free_ids);
  ASSERT_EQ(ev.count, 2u);
  // The two oldest went, and exactly those are reported.
  EXPECT_EQ((std::set<block_key>{gone[0], gone[1]}), (std::set<block_key>{keys[0], keys[1]}));
  EXPECT_FALSE(present(pool.a, keys[0]));
  EXPECT_FALSE(present(pool.a, keys[1]));
  EXPECT_TRUE(present(pool.a, keys[2]));
  EXPECT_EQ(stats(pool.a).evicted_total, 2u);
  EXPECT_EQ(abort_fills(pool.a, h), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S04_EvictedKeysBeyondTheRoomAreCounted) {
  Pool pool({.blocks = 4});
  for (auto& k : keys_of(0, 4)) make_cached(pool.a, k);
  keys_t gone(1);
  kvshm_evicted ev = {sizeof ev, raw(gone), 1, 0};
  handles_t h(3);
  ASSERT_EQ(kvshm_allocate(pool.a, 3, nullptr, nullptr, h.data(), nullptr, &ev), 0);
  EXPECT_EQ(ev.count, 3u);
  EXPECT_EQ(abort_fills(pool.a, h), 0);
}

// Everybody asks for the whole pool at once and holds until all have tried.
TEST(Semantics, S05_AllOrNothingThreads) {
  Pool pool({.blocks = 16});
  for (int round = 0; round < 20; round++) {
    std::atomic<int> ready{0}, tried{0}, granted{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++)
      threads.emplace_back([&] {
        handles_t h(16);
        ready++;
        while (ready < 8) std::this_thread::yield();
        const int rc = kvshm_allocate(pool.a, 16, nullptr, nullptr, h.data(), nullptr, nullptr);
        if (rc == 0) granted += 16;
        tried++;
        while (tried < 8) std::this_thread::yield();
        if (rc == 0) kvshm_abort(pool.a, h.data(), 16);
      });
    for (auto& t : threads) t.join();
    ASSERT_EQ(granted, 16) << "round " << round;
    ASSERT_EQ(available(pool.a), 16u);
  }
  EXPECT_EQ(broken(pool.a), "");
}

// Two that take each other's blocks: both fall short, and still one of them gets all.
TEST(Semantics, S05_TwoContendersThatBothFallShort) {
  Pool pool({.blocks = 16});
  static thread_local int who = 0;
  std::atomic<bool> first_waits{false}, second_waits{false}, first_done{false};
  auto until = [](std::atomic<bool>& flag) {
    for (int i = 0; !flag && i < 20000; i++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  std::atomic<int> claims{0};
  Steps steps([&](const char* name) {
    if (who == 1 && std::strcmp(name, "alloc.claim") == 0 && ++claims == 9) {
      first_waits = true;  // eight are its own; now the other takes the rest
      until(second_waits);
    }
    if (who == 2 && std::strcmp(name, "alloc.rollback") == 0 && !second_waits.exchange(true))
      until(first_done);  // until the first has given up
  });
  int rc[2] = {1, 1};
  std::thread first([&] {
    who = 1;
    handles_t h(16);
    rc[0] = kvshm_allocate(pool.a, 16, nullptr, nullptr, h.data(), nullptr, nullptr);
    first_done = true;
  });
  std::thread second([&] {
    who = 2;
    until(first_waits);
    handles_t h(16);
    rc[1] = kvshm_allocate(pool.a, 16, nullptr, nullptr, h.data(), nullptr, nullptr);
  });
  first.join();
  second.join();
  EXPECT_EQ(rc[0], -KVSHM_ENOSPACE);
  EXPECT_EQ(rc[1], 0) << "nobody got them";
  EXPECT_EQ(stats(pool.a).blocks_filling, 16u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S05_AllOrNothingProcesses) {
  Pool pool({.blocks = 16});
  constexpr int kProcesses = 8, kRounds = 10;
  std::vector<Child> children;
  for (int p = 0; p < kProcesses; p++)
    children.emplace_back([&](Wire& parent) {
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a);
      parent.tell();
      for (int round = 0; round < kRounds; round++) {
        handles_t h(16);
        CHILD_CHECK(parent.listen());
        const int rc = kvshm_allocate(a, 16, nullptr, nullptr, h.data(), nullptr, nullptr);
        parent.tell(rc == 0 ? 'y' : 'n');
        CHILD_CHECK(parent.listen());  // all have tried
        if (rc == 0) CHILD_CHECK(kvshm_abort(a, h.data(), 16) == 0);
        parent.tell();
      }
      CHILD_CHECK(kvshm_close(a, 1000) == 0);
      return 0;
    });
  for (auto& c : children) ASSERT_TRUE(c.listen());
  for (int round = 0; round < kRounds; round++) {
    int granted = 0;
    for (auto& c : children) c.tell();
    for (auto& c : children) granted += c.listen() == 'y' ? 16 : 0;
    for (auto& c : children) c.tell();
    for (auto& c : children) ASSERT_TRUE(c.listen());
    ASSERT_EQ(granted, 16) << "round " << round;
    ASSERT_EQ(available(pool.a), 16u);
  }
  for (auto& c : children) EXPECT_EQ(c.wait(), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S06_UnregisteredBlocksGoToFreeNotInactive) {
  Pool pool({.blocks = 16});
  const handles_t plain = fill_blocks(pool.a, 8);
  handles_t staged(8);  // with their keys, quiet
  const keys_t keys = keys_of(0, 8);
  auto o = sized<kvshm_fill_options>();
  o.flags = KVSHM_QUIET;
  ASSERT_EQ(kvshm_allocate(pool.a, 8, raw(keys), &o, staged.data(), nullptr, nullptr), 0);
  EXPECT_EQ(abort_fills(pool.a, plain), 0);
  EXPECT_EQ(abort_fills(pool.a, staged), 0);
  const kvshm_stats s = stats(pool.a);
  EXPECT_EQ(s.blocks_free, 16u);
  EXPECT_EQ(s.blocks_inactive, 0u);
  EXPECT_EQ(s.registered_total, 0u);
  EXPECT_EQ(s.aborted_total, 16u);
  for (auto& k : keys) EXPECT_FALSE(present(pool.a, k));
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S07_Mixed24) {
  Pool pool({.blocks = 24});
  const handles_t plain = fill_blocks(pool.a, 8);
  handles_t staged(8);
  const keys_t keys = keys_of(0, 8), cached = keys_of(50, 8);
  ASSERT_EQ(kvshm_allocate(pool.a, 8, raw(keys), nullptr, staged.data(), nullptr, nullptr), 0);
  for (auto& k : cached) make_cached(pool.a, k);
  EXPECT_EQ(abort_fills(pool.a, plain), 0);
  EXPECT_EQ(abort_fills(pool.a, staged), 0);
  const kvshm_stats s = stats(pool.a);
  EXPECT_EQ(s.blocks_free, 16u);
  EXPECT_EQ(s.blocks_inactive, 8u);
  EXPECT_EQ(s.blocks_free + s.blocks_inactive, 24u);
  EXPECT_EQ(s.blocks_filling, 0u);
  for (auto& k : keys) EXPECT_FALSE(present(pool.a, k));
  EXPECT_EQ(broken(pool.a), "");
}

// A rival takes one of two victims between choice and claim, every time: both are given back.
TEST(Semantics, S08_PolicyYieldsFewerThanItPromised) {
  Pool pool({.blocks = 4});
  kvshm_arena* rival = pool.another();
  const block_key steady = key_of(1), stolen = key_of(2);
  make_cached(pool.a, stolen);
  make_cached(pool.a, steady);
  ASSERT_EQ(stats(pool.a).blocks_free, 2u);
  bool inside = false;
  int thefts = 0;
  {
    Steps steps([&](const char* name) {
      if (inside || std::strcmp(name, "evict.claim") != 0) return;
      inside = true;  // away and back under the same key: another life, so the claim must fail
      if (kvshm_evict(rival, raw(stolen), 1) == 1) {
        kvshm_handle h;
        auto o = sized<kvshm_fill_options>();
        o.flags = KVSHM_NO_EVICT | KVSHM_QUIET;
        if (kvshm_allocate(rival, 1, raw(stolen), &o, &h, nullptr, nullptr) == 0) {
          write_payload(rival, h.id, stolen);
          kvshm_register(rival, &h, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr);
          kvshm_drop(rival, &h, 1);
          thefts++;
        }
      }
      inside = false;
    });
    handles_t h(4);
    EXPECT_EQ(kvshm_allocate(pool.a, 4, nullptr, nullptr, h.data(), nullptr, nullptr),
              -KVSHM_ENOSPACE);
  }
  EXPECT_GT(thefts, 0);
  kvshm_stats s = stats(pool.a);
  EXPECT_EQ(s.blocks_free, 2u);
  EXPECT_EQ(s.blocks_inactive, 2u);
  EXPECT_EQ(s.rollbacks_total, 1u);
  EXPECT_TRUE(present(pool.a, steady));
  EXPECT_TRUE(present(pool.a, stolen));
  EXPECT_EQ(wrong_payloads(pool.a), "");
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S08_RealPolicyNeverRollsBack) {
  Pool pool({.blocks = 8});
  for (auto& k : keys_of(0, 8)) make_cached(pool.a, k);
  for (int round = 0; round < 50; round++) {
    handles_t h(5);
    ASSERT_EQ(kvshm_allocate(pool.a, 5, nullptr, nullptr, h.data(), nullptr, nullptr), 0);
    handles_t more(4);
    EXPECT_EQ(kvshm_allocate(pool.a, 4, nullptr, nullptr, more.data(), nullptr, nullptr),
              -KVSHM_ENOSPACE);
    EXPECT_EQ(abort_fills(pool.a, h), 0);
    for (auto& k : keys_of(100 * round, 5)) make_cached(pool.a, k);
  }
  EXPECT_EQ(stats(pool.a).rollbacks_total, 0u);
  EXPECT_EQ(broken(pool.a), "");
}
