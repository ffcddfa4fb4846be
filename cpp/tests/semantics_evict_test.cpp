// SPDX-License-Identifier: Apache-2.0
// Semantics 33, 35, 36, 38, 40, 43: eviction order, removal, reset, gauges.
#include <algorithm>
#include <cerrno>
#include <random>

#include "index/index.hpp"
#include "support.hpp"

using namespace kvshm_test;

namespace {

// A chain whose blocks are registered in the order given, each below its predecessor in the chain.
handles_t make_chain(kvshm_arena* a, const keys_t& keys) {
  handles_t h(keys.size());
  EXPECT_EQ(
      kvshm_allocate(a, std::uint32_t(keys.size()), raw(keys), nullptr, h.data(), nullptr, nullptr),
      0);
  for (std::size_t i = 0; i < keys.size(); i++) write_payload(a, h[i].id, keys[i]);
  return h;
}

// Pushes one block out at a time by filling; the keys in the order in which they went.
keys_t evict_one_by_one(kvshm_arena* a, std::size_t n) {
  keys_t order;
  handles_t held;
  for (std::size_t i = 0; i < n; i++) {
    keys_t gone(1);
    kvshm_evicted ev = {sizeof ev, raw(gone), 1, 0};
    kvshm_handle h;
    EXPECT_EQ(kvshm_allocate(a, 1, nullptr, nullptr, &h, nullptr, &ev), 0);
    EXPECT_EQ(ev.count, 1u);
    order.push_back(gone[0]);
    held.push_back(h);
  }
  EXPECT_EQ(abort_fills(a, held), 0);
  return order;
}

}  // namespace

TEST(Semantics, S33_LeavesFirstWhateverTheOrderOfRelease) {
  const keys_t keys = keys_of(0, 4);
  std::vector<std::size_t> order = {0, 1, 2, 3};
  const keys_t leaf_first = {keys[3], keys[2], keys[1], keys[0]};
  do {  // all 24 orders of release
    Pool pool({.blocks = 4});
    const handles_t h = make_chain(pool.a, keys);
    ASSERT_EQ(kvshm_register(pool.a, h.data(), 4, nullptr, KVSHM_ALLOW, nullptr, nullptr), 4);
    for (std::size_t i : order) ASSERT_EQ(drop(pool.a, h[i]), 0);
    EXPECT_EQ(evict_one_by_one(pool.a, 4), leaf_first)
        << "released " << order[0] << order[1] << order[2] << order[3];
    EXPECT_EQ(broken(pool.a), "");
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Semantics, S33_OutOfOrderRegistration) {
  const keys_t keys = keys_of(0, 4);
  std::vector<std::size_t> order = {0, 1, 2, 3};
  const keys_t leaf_first = {keys[3], keys[2], keys[1], keys[0]};
  do {
    Pool pool({.blocks = 4});
    const handles_t h = make_chain(pool.a, keys);
    for (std::size_t i : order)
      ASSERT_EQ(kvshm_register(pool.a, &h[i], 1, nullptr, KVSHM_ALLOW, nullptr, nullptr), 1);
    ASSERT_EQ(kvshm_drop(pool.a, h.data(), 4), 0);
    EXPECT_EQ(evict_one_by_one(pool.a, 4), leaf_first)
        << "registered " << order[0] << order[1] << order[2] << order[3];
    EXPECT_EQ(broken(pool.a), "");
  } while (std::next_permutation(order.begin(), order.end()));
}

// Where few of many blocks can go, they are looked for once a demand, not once a victim.
TEST(Semantics, S33_FewOfManyAreLookedForOnce) {
  constexpr std::uint32_t kMany = 5000, kFew = 60;
  Pool pool({.blocks = kMany, .block_bytes = 0});
  const keys_t keys = keys_of(0, kMany);
  handles_t h(kMany);
  kvshm_fill_options o = KVSHM_FILL_OPTIONS_INIT;
  o.flags = KVSHM_UNCHAINED;
  ASSERT_EQ(kvshm_allocate(pool.a, kMany, raw(keys), &o, h.data(), nullptr, nullptr), 0);
  ASSERT_EQ(kvshm_register(pool.a, h.data(), kMany, nullptr, KVSHM_ALLOW, nullptr, nullptr), kMany);
  const std::uint32_t step = kMany / kFew;
  for (std::uint32_t i = 0; i < kFew; i++) ASSERT_EQ(drop(pool.a, h[i * step]), 0);
  keys_t gone(kFew), oldest;
  kvshm_evicted ev = {sizeof ev, raw(gone), kFew, 0};
  handles_t got(kFew + 1);
  ASSERT_EQ(kvshm_allocate(pool.a, kFew / 2, nullptr, nullptr, got.data(), nullptr, &ev), 0);
  gone.resize(ev.count);
  for (std::uint32_t i = 0; i < kFew / 2; i++) oldest.push_back(keys[i * step]);
  EXPECT_EQ(gone, oldest);
  EXPECT_LT(stats(pool.a).evict_looks_total, kMany + kFew * kFew);
  // The last one is refused after one more look, in the claim and in the one after reaping.
  EXPECT_EQ(kvshm_allocate(pool.a, kFew / 2 + 1, nullptr, nullptr, got.data() + kFew / 2, nullptr,
                           nullptr),
            -KVSHM_ENOSPACE);
  EXPECT_LT(stats(pool.a).evict_looks_total, 5 * kMany + 3 * kFew * kFew);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S35_RemovingAnInteriorBlockKeepsItsChildren) {
  Pool pool({.blocks = 8});
  const keys_t keys = keys_of(0, 3);
  const handles_t h = make_chain(pool.a, keys);
  ASSERT_EQ(kvshm_register(pool.a, h.data(), 3, nullptr, KVSHM_ALLOW, nullptr, nullptr), 3);
  ASSERT_EQ(kvshm_drop(pool.a, h.data(), 3), 0);
  EXPECT_EQ(kvshm_evict(pool.a, raw(keys[1]), 1), 1);
  EXPECT_FALSE(present(pool.a, keys[1]));
  std::uint32_t ids[3];
  kvshm_lease lease;
  EXPECT_EQ(kvshm_match_scattered(pool.a, raw(keys), 3, 0, 0, ids, &lease), 2);
  EXPECT_TRUE(payload_right(pool.a, ids[0], keys[0]));
  EXPECT_TRUE(payload_right(pool.a, ids[2], keys[2]));
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  EXPECT_EQ(broken(pool.a), "");
}

// No placeholder, tombstone or entry is left by a million lives.
TEST(Semantics, S35_AMillionCyclesLeakNothing) {
  Pool pool({.blocks = 64, .block_bytes = 0});
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr std::uint64_t kCycles = 40'000;
#else
  constexpr std::uint64_t kCycles = 1'000'000;
#endif
  constexpr std::uint32_t kBatch = 8;
  keys_t keys(kBatch);
  handles_t h(kBatch);
  for (std::uint64_t i = 0; i < kCycles; i += kBatch) {
    for (std::uint32_t j = 0; j < kBatch; j++) keys[j] = key_of(i + j);
    ASSERT_EQ(kvshm_allocate(pool.a, kBatch, raw(keys), nullptr, h.data(), nullptr, nullptr), 0);
    ASSERT_EQ(kvshm_register(pool.a, h.data(), kBatch, nullptr, KVSHM_ALLOW, nullptr, nullptr),
              std::int64_t(kBatch));
    ASSERT_EQ(kvshm_drop(pool.a, h.data(), kBatch), 0);
  }
  const kvshm_stats s = stats(pool.a);
  EXPECT_EQ(s.registered_total, kCycles);
  EXPECT_EQ(s.private_total, 0u) << "the index filled up";
  EXPECT_EQ(s.blocks_inactive, 64u);
  EXPECT_EQ(s.rollbacks_total, 0u);
  EXPECT_EQ(broken(pool.a), "");
  EXPECT_EQ(kvshm_clear(pool.a), 64);
  EXPECT_EQ(stats(pool.a).blocks_free, 64u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S36_AChainOfAThousand) {
  constexpr std::uint32_t kLength = 1000;
  Pool pool({.blocks = kLength, .block_bytes = 64});
  const keys_t keys = keys_of(0, kLength);
  const handles_t h = make_chain(pool.a, keys);
  ASSERT_EQ(kvshm_register(pool.a, h.data(), kLength, nullptr, KVSHM_ALLOW, nullptr, nullptr),
            std::int64_t(kLength));
  ASSERT_EQ(kvshm_drop(pool.a, h.data(), kLength), 0);
  EXPECT_EQ(block(pool.a, h.back().id).depth, kLength - 1);
  keys_t gone(kLength);
  kvshm_evicted ev = {sizeof ev, raw(gone), gone.size(), 0};
  handles_t again(kLength);
  ASSERT_EQ(kvshm_allocate(pool.a, kLength, nullptr, nullptr, again.data(), nullptr, &ev), 0);
  EXPECT_EQ(ev.count, kLength);
  // From the leaf to the root: no block went before its child.
  EXPECT_TRUE(std::equal(gone.begin(), gone.end(), keys.rbegin()));
  EXPECT_EQ(abort_fills(pool.a, again), 0);
  EXPECT_EQ(broken(pool.a), "");
}

// Keys that lie in the same two buckets under the same tag and still are different.
TEST(Semantics, S38_KeysThatShareTheIndexBits) {
  Pool pool({.blocks = 16});
  const std::uint64_t buckets = 16 / 4 + 2;
  keys_t twins;
  const block_key first = key_of(5);
  const kvshm::Key k = kvshm::Key::load(first.data());
  const kvshm::Spot want = kvshm::spot_of(k, buckets);
  for (std::uint64_t i = 0; twins.size() < 12; i++) {
    // The low 31 bits make the tag, the high bits the bucket: those between are free.
    const kvshm::Key t = {k.lo ^ (i << 31 & 0xffffff80000000), k.hi ^ i};
    const kvshm::Spot s = kvshm::spot_of(t, buckets);
    if (s.b1 != want.b1 || s.b2 != want.b2 || s.tag != want.tag) continue;
    block_key b;
    t.store(b.data());
    if (std::find(twins.begin(), twins.end(), b) == twins.end()) twins.push_back(b);
  }
  handles_t held;
  for (auto& t : twins) {
    held.push_back(make_held(pool.a, t));
    EXPECT_EQ(broken(pool.a), "");
  }
  EXPECT_EQ(stats(pool.a).registered_total, twins.size());  // none taken for another
  EXPECT_EQ(kvshm_drop(pool.a, held.data(), std::uint32_t(held.size())), 0);
  for (std::size_t i = 0; i < twins.size(); i++) {
    kvshm_handle h;
    ASSERT_EQ(kvshm_acquire(pool.a, twins[i].data(), 0, &h), 0) << i;
    EXPECT_EQ(h.id, held[i].id);
    EXPECT_TRUE(payload_right(pool.a, h.id, twins[i]));
    EXPECT_EQ(drop(pool.a, h), 0);
  }
  // Removing one leaves the others; looking for it finds none of them.
  for (std::size_t i = 0; i < twins.size(); i += 2) {
    EXPECT_EQ(kvshm_evict(pool.a, raw(twins[i]), 1), 1);
    kvshm_handle h;
    EXPECT_EQ(kvshm_acquire(pool.a, twins[i].data(), 0, &h), -ENOENT);
    EXPECT_EQ(broken(pool.a), "");
  }
  for (std::size_t i = 0; i < twins.size(); i++) EXPECT_EQ(present(pool.a, twins[i]), i % 2 == 1);
  EXPECT_EQ(wrong_payloads(pool.a), "");
}

TEST(Semantics, S38_TwinsInTwoProcessesAreNotMerged) {
  Pool pool({.blocks = 16});
  kvshm_arena* b = pool.another();
  const kvshm::Key k = {0x1234567, 42}, t = {0x1234567 | 1ull << 40, 42};
  ASSERT_EQ(kvshm::spot_of(k, 6).tag, kvshm::spot_of(t, 6).tag);
  block_key first, twin;
  k.store(first.data());
  t.store(twin.data());
  const kvshm_handle x = make_held(pool.a, first), y = make_held(b, twin);
  EXPECT_NE(x.id, y.id);
  EXPECT_EQ(kvshm_evict(pool.a, raw(twin), 1), 0);  // held by the other
  EXPECT_EQ(drop(b, y), 0);
  EXPECT_EQ(kvshm_evict(pool.a, raw(twin), 1), 1);
  EXPECT_TRUE(present(b, first));
  EXPECT_EQ(drop(pool.a, x), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Semantics, S40_ResetInactive) {
  Pool pool({.blocks = 8});
  const keys_t keys = keys_of(0, 6);
  for (auto& k : keys) make_cached(pool.a, k);
  std::uint64_t expected = 0, actual = 0;
  EXPECT_EQ(kvshm_reset_inactive(pool.a, &expected, &actual), 0);
  EXPECT_EQ(expected, 8u);
  EXPECT_EQ(actual, 8u);
  EXPECT_EQ(stats(pool.a).blocks_free, 8u);
  for (auto& k : keys) EXPECT_FALSE(present(pool.a, k));
  for (auto& k : keys) make_cached(pool.a, k);
  const kvshm_handle h = make_held(pool.a, key_of(50));
  EXPECT_EQ(kvshm_reset_inactive(pool.a, &expected, &actual), -EBUSY);
  EXPECT_EQ(expected, 8u);
  EXPECT_EQ(actual, 7u);
  const std::string text = kvshm_last_error();
  EXPECT_NE(text.find('8'), std::string::npos) << text;
  EXPECT_NE(text.find('7'), std::string::npos) << text;
  EXPECT_TRUE(present(pool.a, key_of(50)));
  EXPECT_TRUE(payload_right(pool.a, h.id, key_of(50)));
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(kvshm_reset_inactive(pool.a, &expected, &actual), 0);
  EXPECT_EQ(broken(pool.a), "");
}

// Three processes do what they like; at each quiescent point the gauges add up.
TEST(Semantics, S43_GaugesAddUp) {
  Pool pool({.blocks = 32});
  std::vector<Child> children;
  for (int p = 0; p < 3; p++)
    children.emplace_back([&, p](Wire& parent) {
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a);
      std::mt19937 random(std::uint32_t(17 + p));
      handles_t held, filling;
      while (parent.listen() == 'g') {
        for (int i = 0; i < 50; i++) {
          const block_key key = key_of(random() % 40);
          kvshm_handle h;
          switch (random() % 4) {
            case 0:
              if (kvshm_acquire(a, key.data(), 0, &h) == 0) held.push_back(h);
              break;
            case 1:
              if (kvshm_allocate(a, 1, raw(key), nullptr, &h, nullptr, nullptr) == 0)
                filling.push_back(h);
              break;
            case 2:
              if (filling.empty()) break;
              h = filling.back();
              filling.pop_back();
              CHILD_CHECK(kvshm_register(a, &h, 1, nullptr, int(random() % 2), &h, nullptr) == 1);
              held.push_back(h);
              break;
            default:
              for (int j = 0; j < 3 && !held.empty(); j++) {
                CHILD_CHECK(drop(a, held.back()) == 0);
                held.pop_back();
              }
          }
          while (held.size() + filling.size() > 8) {
            if (held.empty()) {
              CHILD_CHECK(kvshm_abort(a, &filling.back(), 1) == 0);
              filling.pop_back();
            } else {
              CHILD_CHECK(drop(a, held.back()) == 0);
              held.pop_back();
            }
          }
        }
        const std::uint32_t mine[2] = {std::uint32_t(held.size()), std::uint32_t(filling.size())};
        CHILD_CHECK(parent.send(mine, sizeof mine));
      }
      CHILD_CHECK(kvshm_close(a, 1000) == 0);
      return 0;
    });
  for (int point = 0; point < 30; point++) {
    std::uint32_t filling = 0;
    for (auto& c : children) c.tell('g');
    for (auto& c : children) {
      std::uint32_t theirs[2] = {};
      ASSERT_TRUE(c.wire().receive(theirs, sizeof theirs));
      filling += theirs[1];
    }
    const kvshm_stats s = stats(pool.a);
    ASSERT_EQ(s.blocks_free + s.blocks_inactive + s.blocks_held + s.blocks_filling, s.blocks_total);
    ASSERT_EQ(s.blocks_evicting, 0u);
    ASSERT_EQ(s.blocks_filling, filling);
    ASSERT_EQ(broken(pool.a), "") << "point " << point;
  }
  for (auto& c : children) c.tell('q');
  for (auto& c : children) EXPECT_EQ(c.wait(), 0);
  const kvshm_stats s = stats(pool.a);
  EXPECT_EQ(s.blocks_held + s.blocks_filling, 0u);
  EXPECT_EQ(s.blocks_free + s.blocks_inactive, s.blocks_total);
}
