// SPDX-License-Identifier: Apache-2.0
// Semantics 18-25, 30-32: matching, weak handles, pins, the no-cache flag.
#include <cerrno>

#include "support.hpp"

using namespace kvshm_test;

namespace {

std::int64_t match(kvshm_arena* a, const keys_t& keys, std::vector<std::uint32_t>* ids,
                   kvshm_lease* lease) {
  ids->assign(keys.size(), KVSHM_NONE);
  return kvshm_match(a, raw(keys), std::uint32_t(keys.size()), ids->data(), lease);
}

// A whole arena's worth of other blocks pushes out what nobody holds.
void flood(kvshm_arena* a, std::uint64_t seed) {
  const std::uint64_t n = available(a);
  for (auto& k : keys_of(seed, n)) make_cached(a, k);
}

}  // namespace

TEST(Semantics, S18_PrefixMatch) {
  Pool pool;
  const keys_t keys = keys_of(0, 3);
  const kvshm_handle h0 = make_held(pool.a, keys[0]);
  make_cached(pool.a, keys[1], h0);
  const kvshm_handle h2 = make_held(pool.a, keys[2]);
  std::vector<std::uint32_t> ids;
  kvshm_lease lease;
  ASSERT_EQ(match(pool.a, keys, &ids, &lease), 3);
  EXPECT_EQ(ids[0], h0.id);
  EXPECT_EQ(ids[2], h2.id);
  for (int i = 0; i < 3; i++) EXPECT_TRUE(payload_right(pool.a, ids[i], keys[i]));
  std::uint32_t listed[3];
  EXPECT_EQ(kvshm_lease_ids(pool.a, lease, listed, 3), 3);
  EXPECT_EQ(listed[1], ids[1]);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(kvshm_release(pool.a, lease), -EBADF);

  const keys_t cut = {keys[0], keys[1], key_of(77), keys[2]};  // a total miss at 2
  ASSERT_EQ(match(pool.a, cut, &ids, &lease), 2);
  EXPECT_EQ(ids[2], KVSHM_NONE);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);

  EXPECT_EQ(match(pool.a, {key_of(77)}, &ids, &lease), 0);
  EXPECT_EQ(lease, 0u);
  EXPECT_EQ(kvshm_match(pool.a, nullptr, 0, nullptr, &lease), 0);
  EXPECT_EQ(lease, 0u);
  EXPECT_EQ(kvshm_release(pool.a, 0), -EBADF);
  EXPECT_EQ(drop(pool.a, h0), 0);
  EXPECT_EQ(drop(pool.a, h2), 0);
  EXPECT_EQ(stats(pool.a).blocks_held, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S18_TrimGivesBackTheTail) {
  Pool pool;
  const keys_t keys = keys_of(0, 5);
  for (auto& k : keys) make_cached(pool.a, k);
  std::vector<std::uint32_t> ids;
  kvshm_lease lease;
  ASSERT_EQ(match(pool.a, keys, &ids, &lease), 5);
  EXPECT_EQ(kvshm_lease_trim(pool.a, lease, 2), 0);
  EXPECT_EQ(stats(pool.a).blocks_held, 2u);
  EXPECT_EQ(block(pool.a, ids[1]).own_holds, 1u);
  EXPECT_EQ(block(pool.a, ids[2]).own_holds, 0u);
  EXPECT_EQ(kvshm_lease_trim(pool.a, lease, 9), 0);  // nothing beyond
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(kvshm_lease_trim(pool.a, lease, 0), -EBADF);
  EXPECT_EQ(stats(pool.a).blocks_held, 0u);
}

TEST(Semantics, S19_ScatteredMatch) {
  Pool pool;
  const keys_t k = keys_of(0, 3);
  const kvshm_handle active = make_held(pool.a, k[0]), last = make_held(pool.a, k[2]);
  make_cached(pool.a, k[1]);
  const keys_t keys = {k[0], key_of(99), k[1], k[1], k[2]};
  std::vector<std::uint32_t> ids(5);
  kvshm_lease lease;
  const kvshm_stats before = stats(pool.a);
  ASSERT_EQ(kvshm_match_scattered(pool.a, raw(keys), 5, 0, 0, ids.data(), &lease), 4);
  EXPECT_EQ(ids[0], active.id);
  EXPECT_EQ(ids[1], KVSHM_NONE);
  EXPECT_EQ(ids[2], ids[3]);
  EXPECT_EQ(ids[4], last.id);
  EXPECT_EQ(stats(pool.a).hits_total - before.hits_total, 4u);
  EXPECT_EQ(stats(pool.a).misses_total - before.misses_total, 1u);
  EXPECT_EQ(block(pool.a, ids[2]).own_holds, 2u);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(block(pool.a, ids[2]).own_holds, 0u);
  EXPECT_EQ(block(pool.a, ids[0]).own_holds, 1u);
  EXPECT_EQ(drop(pool.a, active), 0);
  EXPECT_EQ(drop(pool.a, last), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S20_ScanCountsDuplicatesOnce) {
  Pool pool;
  const keys_t k = keys_of(0, 3);
  for (auto& x : k) make_cached(pool.a, x);
  const keys_t keys = {k[0], key_of(99), k[2], k[0], k[1], k[2]};
  std::vector<std::uint32_t> ids(6), which(6);
  kvshm_lease lease;
  const kvshm_stats before = stats(pool.a);
  ASSERT_EQ(kvshm_scan(pool.a, raw(keys), 6, 0, 0, ids.data(), which.data(), &lease), 3);
  EXPECT_EQ((std::vector<std::uint32_t>{which[0], which[1], which[2]}),
            (std::vector<std::uint32_t>{0, 2, 4}));
  for (int j = 0; j < 3; j++) EXPECT_TRUE(payload_right(pool.a, ids[j], keys[which[j]]));
  EXPECT_EQ(stats(pool.a).lookups_total - before.lookups_total, 6u);
  EXPECT_EQ(stats(pool.a).hits_total - before.hits_total, 5u);
  for (int j = 0; j < 3; j++) EXPECT_EQ(block(pool.a, ids[j]).own_holds, 1u);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(stats(pool.a).blocks_held, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S21_AMatchedBlockIsNotEvictable) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  make_cached(pool.a, key);
  EXPECT_EQ(stats(pool.a).blocks_inactive, 1u);
  std::vector<std::uint32_t> ids;
  kvshm_lease lease;
  ASSERT_EQ(match(pool.a, {key}, &ids, &lease), 1);
  EXPECT_EQ(stats(pool.a).blocks_inactive, 0u);
  flood(pool.a, 1000);
  flood(pool.a, 2000);
  EXPECT_TRUE(present(pool.a, key));
  EXPECT_TRUE(payload_right(pool.a, ids[0], key));
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(stats(pool.a).blocks_inactive, 4u);
  // It was used twice, so it may be four times as old as what was used once.
  for (std::uint64_t seed = 3000; seed < 8000; seed += 1000) flood(pool.a, seed);
  EXPECT_FALSE(present(pool.a, key));
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S22_TouchesAreCountedExactly) {
  Pool pool;
  const keys_t k = keys_of(0, 2);
  for (auto& x : k) make_cached(pool.a, x);
  std::vector<std::uint32_t> ids;
  kvshm_lease lease;
  const std::uint64_t before = stats(pool.a).touches_total;
  ASSERT_EQ(match(pool.a, {k[0], k[1], key_of(9)}, &ids, &lease), 2);  // 2 hits, 1 miss
  EXPECT_EQ(stats(pool.a).touches_total - before, 2u);
  EXPECT_EQ(block(pool.a, ids[0]).frequency, 1u);
  const std::uint32_t first = ids[0];
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  const keys_t twice = {k[0], k[0]};
  std::vector<std::uint32_t> which(2);
  ids.resize(2);
  ASSERT_EQ(kvshm_scan(pool.a, raw(twice), 2, KVSHM_NO_TOUCH, 0, ids.data(), which.data(), &lease),
            1);
  EXPECT_EQ(stats(pool.a).touches_total - before, 2u);
  EXPECT_EQ(block(pool.a, first).frequency, 1u);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  ASSERT_EQ(match(pool.a, {key_of(9), k[0]}, &ids, &lease), 0);  // a miss touches nothing
  EXPECT_EQ(stats(pool.a).touches_total - before, 2u);
  kvshm_handle h;
  ASSERT_EQ(kvshm_acquire(pool.a, k[0].data(), 0, &h), 0);
  EXPECT_EQ(stats(pool.a).touches_total - before, 3u);
  EXPECT_EQ(block(pool.a, first).frequency, 2u);
  EXPECT_EQ(drop(pool.a, h), 0);
  for (int i = 0; i < 30; i++) {
    ASSERT_EQ(kvshm_acquire(pool.a, k[0].data(), 0, &h), 0);
    ASSERT_EQ(drop(pool.a, h), 0);
  }
  EXPECT_EQ(block(pool.a, first).frequency, 15u);  // saturates
}

TEST(Semantics, S23_WeakHandles) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1), other = key_of(2);
  const kvshm_handle h = make_held(pool.a, key);
  EXPECT_EQ(kvshm_upgrade(pool.a, h, 0), 0);  // while a strong one exists
  EXPECT_EQ(block(pool.a, h.id).own_holds, 2u);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(kvshm_upgrade(pool.a, h, 0), 0);  // after the last drop, before eviction
  EXPECT_TRUE(payload_right(pool.a, h.id, key));
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(kvshm_evict(pool.a, raw(key), 1), 1);
  EXPECT_EQ(kvshm_upgrade(pool.a, h, 0), -ENOENT);
  // The slot used again, also under the same key: another life.
  for (const block_key& k : {other, key}) {
    for (int i = 0;; i++) {
      ASSERT_LT(i, 100) << "the slot is not used again";
      const kvshm_handle now = make_held(pool.a, k);
      EXPECT_EQ(kvshm_upgrade(pool.a, h, 0), -ENOENT);
      EXPECT_EQ(drop(pool.a, now), 0);
      if (now.id == h.id) break;
      EXPECT_EQ(kvshm_evict(pool.a, raw(k), 1), 1);
    }
    EXPECT_EQ(kvshm_evict(pool.a, raw(k), 1), 1);
  }
  EXPECT_EQ(kvshm_upgrade(pool.a, {5, 4, 0}, 0), -EINVAL);  // no such block
  EXPECT_EQ(stats(pool.a).blocks_held, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S24_APinHolds) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  const kvshm_handle h = make_held(pool.a, key);
  kvshm_lease pin;
  ASSERT_EQ(kvshm_pin(pool.a, &h, 1, 42, &pin), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(available(pool.a), 3u);
  flood(pool.a, 100);
  EXPECT_TRUE(present(pool.a, key));
  EXPECT_EQ(kvshm_release(pool.a, pin), 0);
  EXPECT_EQ(available(pool.a), 4u);
  // All or none.
  kvshm_clear(pool.a);
  const kvshm_handle live = make_held(pool.a, key_of(2));
  const kvshm_handle two[2] = {live, h};
  EXPECT_EQ(kvshm_pin(pool.a, two, 2, 0, &pin), -ENOENT);
  EXPECT_EQ(block(pool.a, live.id).own_holds, 1u);
  EXPECT_EQ(drop(pool.a, live), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S25_ThreeWeakHandlesOneBlock) {
  Pool pool;
  const kvshm_handle h = make_held(pool.a, key_of(1));
  EXPECT_EQ(drop(pool.a, h), 0);
  for (int i = 0; i < 3; i++) EXPECT_EQ(kvshm_upgrade(pool.a, h, 0), 0);
  EXPECT_EQ(block(pool.a, h.id).own_holds, 3u);
  for (int i = 0; i < 3; i++) EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(drop(pool.a, h), -KVSHM_ENOTMINE);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S30_PresenceThroughDuplicatesAndInactivity) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  std::uint8_t mask;
  EXPECT_EQ(kvshm_presence(pool.a, raw(key), 1, &mask), 0);
  kvshm_handle fill, dup;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key), nullptr, &fill, nullptr, nullptr), 0);
  EXPECT_EQ(kvshm_presence(pool.a, raw(key), 1, &mask), 1);
  EXPECT_EQ(mask, KVSHM_IS_FILLING);
  write_payload(pool.a, fill.id, key);
  ASSERT_EQ(kvshm_register(pool.a, &fill, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr), 1);
  EXPECT_TRUE(present(pool.a, key));
  const handles_t second = fill_blocks(pool.a, 1);
  write_payload(pool.a, second[0].id, key);
  ASSERT_EQ(kvshm_register(pool.a, second.data(), 1, raw(key), KVSHM_ALLOW, &dup, nullptr), 1);
  EXPECT_EQ(drop(pool.a, dup), 0);
  EXPECT_TRUE(present(pool.a, key));
  EXPECT_EQ(drop(pool.a, fill), 0);
  EXPECT_TRUE(present(pool.a, key));
  const std::uint64_t touched = stats(pool.a).touches_total;
  EXPECT_TRUE(present(pool.a, key));
  EXPECT_EQ(stats(pool.a).touches_total, touched);
  flood(pool.a, 100);
  EXPECT_FALSE(present(pool.a, key));
  make_cached(pool.a, key);
  EXPECT_TRUE(present(pool.a, key));
  EXPECT_EQ(kvshm_clear(pool.a), 4);
  EXPECT_FALSE(present(pool.a, key));
}

TEST(Semantics, S31_NoCacheClosesAtTheLastDrop) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  kvshm_handle h = make_held(pool.a, key);
  EXPECT_EQ(kvshm_set_no_cache(pool.a, h, 1), 0);
  EXPECT_EQ(kvshm_upgrade(pool.a, h, 0), 0);  // a clone
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_TRUE(present(pool.a, key));  // the clone lives: it still matches
  std::vector<std::uint32_t> ids;
  kvshm_lease lease;
  ASSERT_EQ(match(pool.a, {key}, &ids, &lease), 1);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_FALSE(present(pool.a, key));
  EXPECT_EQ(stats(pool.a).blocks_free, 4u);
  EXPECT_EQ(stats(pool.a).closed_total, 1u);
  EXPECT_EQ(kvshm_set_no_cache(pool.a, h, 1), -KVSHM_ENOTMINE);
  // The last writer wins.
  h = make_held(pool.a, key);
  EXPECT_EQ(kvshm_set_no_cache(pool.a, h, 1), 0);
  EXPECT_EQ(kvshm_set_no_cache(pool.a, h, 0), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_TRUE(present(pool.a, key));
  ASSERT_EQ(kvshm_upgrade(pool.a, h, 0), 0);
  EXPECT_EQ(kvshm_set_no_cache(pool.a, h, 0), 0);
  EXPECT_EQ(kvshm_set_no_cache(pool.a, h, 1), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_FALSE(present(pool.a, key));
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S31_NoCacheAskedForAtAllocation) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  auto o = sized<kvshm_fill_options>();
  o.flags = KVSHM_NO_CACHE;
  kvshm_handle h;
  for (int clear = 0; clear < 2; clear++) {  // and taken back while it is being filled
    ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key), &o, &h, nullptr, nullptr), 0);
    if (clear) {
      EXPECT_EQ(kvshm_set_no_cache(pool.a, h, 0), 0);
    }
    ASSERT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr), 1);
    EXPECT_TRUE(present(pool.a, key));
    EXPECT_EQ(drop(pool.a, h), 0);
    EXPECT_EQ(present(pool.a, key), clear == 1);
  }
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S32_AClearedFlagSurvivesAndADuplicateKeepsItsOwn) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  kvshm_handle h = make_held(pool.a, key);
  EXPECT_EQ(kvshm_set_no_cache(pool.a, h, 1), 0);
  EXPECT_EQ(kvshm_set_no_cache(pool.a, h, 0), 0);
  for (int cycle = 0; cycle < 3; cycle++) {
    EXPECT_EQ(drop(pool.a, h), 0);
    EXPECT_EQ(block(pool.a, h.id).state, unsigned(KVSHM_READY));
    ASSERT_EQ(kvshm_upgrade(pool.a, h, 0), 0);
  }
  // On a duplicate: nothing changes for the primary, and it cannot be cleared.
  const handles_t second = fill_blocks(pool.a, 1);
  kvshm_handle dup;
  write_payload(pool.a, second[0].id, key);
  ASSERT_EQ(kvshm_register(pool.a, second.data(), 1, raw(key), KVSHM_ALLOW, &dup, nullptr), 1);
  EXPECT_EQ(kvshm_set_no_cache(pool.a, dup, 1), 0);
  EXPECT_EQ(kvshm_set_no_cache(pool.a, dup, 0), 0);
  EXPECT_EQ(block(pool.a, dup.id).state, unsigned(KVSHM_READY_LAST));
  EXPECT_EQ(block(pool.a, h.id).state, unsigned(KVSHM_READY));
  EXPECT_EQ(drop(pool.a, dup), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_TRUE(present(pool.a, key));
  // After eviction the flag is the default again.
  h = make_held(pool.a, key_of(2));
  EXPECT_EQ(kvshm_set_no_cache(pool.a, h, 1), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  kvshm_clear(pool.a);
  for (auto& k : keys_of(10, 4)) make_cached(pool.a, k);
  EXPECT_EQ(stats(pool.a).blocks_inactive, 4u);
  EXPECT_EQ(broken(pool.a), "");
}
