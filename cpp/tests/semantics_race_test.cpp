// SPDX-License-Identifier: Apache-2.0
// Semantics 26-29: the last drop against look-ups, late cleanups, one slot for two keys.
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "support.hpp"

using namespace kvshm_test;

namespace {

// Holds the thread that it was made for at a step until told to go on.
class Pause {
 public:
  explicit Pause(const char* where) : where_(where) {}
  void arm() { armed_ = true; }
  void operator()(const char* name) {  // from the hook
    if (std::strcmp(name, where_) != 0 || !armed_.exchange(false)) return;
    std::unique_lock<std::mutex> lock(mutex_);
    there_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return go_; });
  }
  bool reached() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return there_; });
  }
  void go() {
    std::lock_guard<std::mutex> lock(mutex_);
    go_ = true;
    changed_.notify_all();
  }

 private:
  const char* where_;
  std::atomic<bool> armed_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool there_ = false, go_ = false;
};

}  // namespace

TEST(Semantics, S26_LastDropRacesALookup) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  for (int round = 0; round < 400; round++) {
    const kvshm_handle h = make_held(pool.a, key);
    std::atomic<int> ready{0};
    std::thread dropper([&] {
      ready++;
      while (ready < 2) {
      }
      EXPECT_EQ(drop(pool.a, h), 0);
    });
    ready++;
    while (ready < 2) {
    }
    kvshm_handle found;
    ASSERT_EQ(kvshm_acquire(pool.a, key.data(), 0, &found), 0);  // held or inactive: always there
    EXPECT_EQ(found.id, h.id);
    EXPECT_TRUE(payload_right(pool.a, found.id, key));
    dropper.join();
    EXPECT_EQ(block(pool.a, h.id).own_holds, 1u);
    EXPECT_EQ(drop(pool.a, found), 0);
    const kvshm_stats s = stats(pool.a);
    ASSERT_EQ(s.blocks_inactive, 1u) << "round " << round;
    ASSERT_EQ(s.blocks_free, 3u);
    ASSERT_EQ(kvshm_evict(pool.a, raw(key), 1), 1);
  }
  EXPECT_EQ(stats(pool.a).duplicates_total, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S26_LastDropRacesALookupInAnotherProcess) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  constexpr int kRounds = 200;
  Child finder([&](Wire& parent) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    for (int round = 0; round < kRounds; round++) {
      CHILD_CHECK(parent.listen());
      kvshm_handle h;
      CHILD_CHECK(kvshm_acquire(a, key.data(), 0, &h) == 0);
      CHILD_CHECK(payload_right(a, h.id, key));
      CHILD_CHECK(drop(a, h) == 0);
      parent.tell();
    }
    return 0;
  });
  kvshm_handle h = make_held(pool.a, key);
  for (int round = 0; round < kRounds; round++) {
    finder.tell();
    ASSERT_EQ(drop(pool.a, h), 0);
    ASSERT_TRUE(finder.listen()) << "round " << round;
    ASSERT_EQ(stats(pool.a).blocks_inactive, 1u);
    ASSERT_EQ(kvshm_acquire(pool.a, key.data(), 0, &h), 0);
  }
  EXPECT_EQ(finder.wait(), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(stats(pool.a).registered_total, 1u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S27_ALookupRevivesTheBlockBeforeItsLastDrop) {
  Pool pool;
  const block_key key = key_of(1);
  const kvshm_handle h = make_held(pool.a, key);
  const std::uint64_t released = stats(pool.a).released_total;
  Pause pause("drop.last");
  Steps steps([&](const char* name) { pause(name); });
  pause.arm();
  std::thread dropper([&] { EXPECT_EQ(drop(pool.a, h), 0); });
  ASSERT_TRUE(pause.reached());
  kvshm_handle found;
  EXPECT_EQ(kvshm_acquire(pool.a, key.data(), 0, &found), 0);  // revives it
  EXPECT_EQ(found.id, h.id);
  EXPECT_EQ(block(pool.a, h.id).own_holds, 2u);
  pause.go();
  dropper.join();
  // The drop that thought itself the last was none: one hold less, nothing given up.
  EXPECT_EQ(block(pool.a, h.id).own_holds, 1u);
  EXPECT_NE(block(pool.a, h.id).holders, 0u);
  EXPECT_EQ(stats(pool.a).released_total - released, 1u);
  EXPECT_EQ(stats(pool.a).revived_total, 1u);
  EXPECT_EQ(drop(pool.a, found), 0);  // a normal last drop
  EXPECT_EQ(block(pool.a, h.id).holders, 0u);
  EXPECT_EQ(stats(pool.a).released_total - released, 2u);
  EXPECT_EQ(stats(pool.a).revived_total, 1u);
  EXPECT_EQ(stats(pool.a).blocks_inactive, 1u);
  EXPECT_EQ(broken(pool.a), "");
}

// A closer that has erased its entries is late; the key is registered anew meanwhile.
TEST(Semantics, S28_ALateCleanupLeavesTheNewRegistrationAlone) {
  for (const char* where : {"leave.closing", "close.erased", "close.unkeyed", "close.seq"}) {
    Pool pool({.blocks = 4});
    kvshm_arena* other = pool.another();
    const block_key key = key_of(1);
    const kvshm_handle old = make_held(pool.a, key);
    ASSERT_EQ(kvshm_set_no_cache(pool.a, old, 1), 0);
    Pause pause(where);
    Steps steps([&](const char* name) { pause(name); });
    pause.arm();
    std::thread closer([&] { EXPECT_EQ(drop(pool.a, old), 0); });
    ASSERT_TRUE(pause.reached());
    kvshm_handle fresh = {0, KVSHM_NONE, 0};
    std::uint8_t result = 0;
    auto o = sized<kvshm_fill_options>();
    o.flags = KVSHM_QUIET;
    ASSERT_EQ(kvshm_allocate(other, 1, raw(key), &o, &fresh, nullptr, nullptr), 0);
    write_payload(other, fresh.id, key);
    ASSERT_EQ(kvshm_register(other, &fresh, 1, nullptr, KVSHM_ALLOW, nullptr, &result), 1);
    EXPECT_NE(fresh.id, old.id);
    pause.go();
    closer.join();
    if (std::strcmp(where, "leave.closing") == 0) {
      // Its entry was still there, its block no longer to be had: the new one stays private.
      EXPECT_EQ(result, KVSHM_ST_PRIVATE);
    } else {
      EXPECT_EQ(result, KVSHM_ST_PRIMARY) << where;
      kvshm_handle found;
      ASSERT_EQ(kvshm_acquire(pool.a, key.data(), 0, &found), 0) << where;
      EXPECT_EQ(found.id, fresh.id);
      EXPECT_EQ(found.seq, fresh.seq);
      EXPECT_EQ(drop(pool.a, found), 0);
    }
    EXPECT_EQ(drop(other, fresh), 0);
    EXPECT_EQ(broken(pool.a), "") << where;
  }
}

// The same in reverse order of blocks and through eviction: the victim's slot gets the same key.
TEST(Semantics, S28_AnOldLifeIsNotClosedTwice) {
  Pool pool({.blocks = 1});
  const block_key key = key_of(1);
  for (int round = 0; round < 100; round++) {
    const kvshm_handle h = make_held(pool.a, key);
    EXPECT_EQ(drop(pool.a, h), 0);
    EXPECT_EQ(kvshm_evict(pool.a, raw(key), 1), 1);
    EXPECT_EQ(drop(pool.a, h), -KVSHM_ENOTMINE);
    const kvshm_handle next = make_held(pool.a, key);
    EXPECT_EQ(next.id, h.id);
    EXPECT_NE(next.seq, h.seq);
    EXPECT_EQ(drop(pool.a, h), -KVSHM_ENOTMINE);  // the old handle drops nothing of the new life
    EXPECT_EQ(kvshm_abort(pool.a, &h, 1), -KVSHM_ENOTMINE);
    EXPECT_TRUE(present(pool.a, key));
    EXPECT_EQ(drop(pool.a, next), 0);
    EXPECT_EQ(kvshm_evict(pool.a, raw(key), 1), 1);
  }
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S29_OneSlotTwoKeys) {
  Pool pool({.blocks = 1});
  kvshm_arena* other = pool.another();
  block_key a = key_of(0);
  make_cached(pool.a, a);
  for (int round = 1; round <= 300; round++) {
    const block_key b = key_of(std::uint64_t(round));
    std::atomic<bool> stop{false};
    std::atomic<int> wrong{0};
    std::thread looker([&] {  // meanwhile another attachment looks for both
      while (!stop) {
        for (const block_key& k : {a, b}) {
          kvshm_handle h;
          if (kvshm_acquire(other, k.data(), 0, &h) != 0) continue;
          wrong += !payload_right(other, h.id, k);
          kvshm_drop(other, &h, 1);
        }
      }
    });
    kvshm_handle h;
    auto o = sized<kvshm_fill_options>();
    o.timeout_ms = 5000;
    ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(b), &o, &h, nullptr, nullptr), 0);
    write_payload(pool.a, h.id, b);
    ASSERT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr), 1);
    EXPECT_FALSE(present(pool.a, a)) << round;
    EXPECT_TRUE(present(pool.a, b)) << round;
    stop = true;
    looker.join();
    ASSERT_EQ(wrong, 0);
    EXPECT_EQ(drop(pool.a, h), 0);
    a = b;
  }
  EXPECT_EQ(broken(pool.a), "");
}
