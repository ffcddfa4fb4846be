// SPDX-License-Identifier: Apache-2.0
// The memory of how often keys that left were used (semantics 39), in both forms.
#include "evict/uses.hpp"

#include <thread>

#include "capi/call.hpp"
#include "support.hpp"

using namespace kvshm_test;
using kvshm::Key;

namespace {

kvshm::Arena& inner(kvshm_arena* a) { return *a->impl; }
Key key_number(std::uint64_t i) { return Key::load(key_of(i).data()); }

void set_form(kvshm_arena* a, bool sketch) {
  auto p = sized<kvshm_policy>();
  ASSERT_EQ(kvshm_get_policy(a, &p), 0);
  p.flags = KVSHM_POLICY_MEMORY;
  if (sketch) p.flags |= KVSHM_POLICY_SKETCH;
  ASSERT_EQ(kvshm_set_policy(a, &p), 0);
}

// One more use of a key that is not here.
void touch(kvshm::Arena& a, Key k) { kvshm::remember(a, k, kvshm::recall(a, k) + 1); }

// Counters that are not zero, and all of them.
std::pair<std::uint64_t, std::uint64_t> counters_used(const kvshm::Arena& a, bool sketch) {
  std::uint64_t used = 0, all = 0;
  if (sketch) {
    for (std::uint64_t i = 0; i < a.nblocks; i++)
      for (unsigned c = 0; c < 15; c++, all++)
        used += (a.uses[i / 8].words[i % 8].load() >> 4 * c & 15) != 0;
  } else {
    for (std::uint64_t i = 0; i < kvshm::uses_lines(a.nblocks); i++)
      for (unsigned w = 1; w < 8; w++)
        for (unsigned at = 0; at < 64; at += 16, all++)
          used += (a.uses[i].words[w].load() >> at & 0xffff) != 0;
  }
  return {used, all};
}

}  // namespace

class Uses : public testing::TestWithParam<std::tuple<bool, std::uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(Forms, Uses,
                         testing::Combine(testing::Bool(),
                                          testing::Values(std::uint64_t{1024}, 1000, 4096)));

TEST_P(Uses, S39_CountsWhatItWasToldAndHalvesIt) {
  const auto [sketch, blocks] = GetParam();
  Pool pool({.blocks = blocks});
  set_form(pool.a, sketch);
  kvshm::Arena& a = inner(pool.a);
  for (unsigned k = 1; k <= 20; k++) {
    touch(a, key_number(7));
    EXPECT_EQ(kvshm::recall(a, key_number(7)), k < 15 ? k : 15);
  }
  for (int i = 0; i < 4; i++) touch(a, key_number(8));
  EXPECT_EQ(kvshm::recall(a, key_number(8)), 4u);
  a.sb->age_epoch++;
  EXPECT_EQ(kvshm::recall(a, key_number(8)), 2u);
  EXPECT_EQ(kvshm::recall(a, key_number(7)), 7u);
  touch(a, key_number(8));
  EXPECT_EQ(kvshm::recall(a, key_number(8)), 3u);
  a.sb->age_epoch += 5;
  EXPECT_EQ(kvshm::recall(a, key_number(7)), 0u);
  EXPECT_EQ(kvshm::recall(a, key_number(8)), 0u);
}

TEST_P(Uses, S39_ManyKeysLeaveAnUntouchedOneAlone) {
  const auto [sketch, blocks] = GetParam();
  Pool pool({.blocks = blocks});
  set_form(pool.a, sketch);
  kvshm::Arena& a = inner(pool.a);
  const std::uint32_t epoch = a.sb->age_epoch;
  for (std::uint64_t i = 0; i < 10 * blocks; i++) touch(a, key_number(i));
  const auto [used, all] = counters_used(a, sketch);
  EXPECT_GT(double(used), 0.9 * double(all));
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < 10000; i++) sum += kvshm::recall(a, key_number(1000000000 + i));
  EXPECT_LT(double(sum) / 10000, 3);
  // Ageing fires by uses, which ticks tell.
  a.sb->tick += 10 * std::uint32_t(blocks);
  kvshm::age(a);
  EXPECT_EQ(a.sb->age_epoch, epoch + 1);
  kvshm::age(a);
  EXPECT_EQ(a.sb->age_epoch, epoch + 1) << "once for so many uses";
}

TEST(Uses, SurviveTheBlockAndComeBackWithIt) {
  Pool pool({.blocks = 4});
  const block_key key = key_of(1);
  make_cached(pool.a, key);
  for (int i = 0; i < 3; i++) {
    std::uint32_t id;
    kvshm_lease lease;
    ASSERT_EQ(kvshm_match(pool.a, raw(key), 1, &id, &lease), 1);
    ASSERT_EQ(kvshm_release(pool.a, lease), 0);
  }
  for (std::uint64_t i = 10; i < 30 && present(pool.a, key); i++) make_cached(pool.a, key_of(i));
  ASSERT_FALSE(present(pool.a, key));
  EXPECT_EQ(kvshm::recall(inner(pool.a), Key::load(key.data())), 4u) << "stored, and found thrice";
  make_cached(pool.a, key);
  std::uint32_t id;
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(key), 1, &id, &lease), 1);
  EXPECT_EQ(block(pool.a, id).frequency, 5u);
  ASSERT_EQ(kvshm_release(pool.a, lease), 0);
  ASSERT_EQ(kvshm_evict(pool.a, raw(key), 1), 1);  // on request: it is not wanted back
  EXPECT_EQ(kvshm::recall(inner(pool.a), Key::load(key.data())), 4u);
}

TEST(Uses, DamageCostsAWrongCountAndNothingElse) {
  for (bool sketch : {false, true}) {
    Pool pool({.blocks = 64});
    set_form(pool.a, sketch);
    kvshm::Arena& a = inner(pool.a);
    std::uint64_t x = 88172645463325252;
    for (int round = 0; round < 10; round++) {
      for (std::uint64_t i = 0; i < kvshm::uses_lines(64); i++)
        for (auto& w : a.uses[i].words) {
          x ^= x << 13, x ^= x >> 7, x ^= x << 17;
          w.store(round ? x : ~std::uint64_t{0});
        }
      for (std::uint64_t i = 0; i < 200; i++) {
        make_cached(pool.a, key_of(i));
        ASSERT_TRUE(present(pool.a, key_of(i)));
        EXPECT_LE(kvshm::recall(a, key_number(i)), 15u);
      }
      ASSERT_EQ(broken(pool.a), "");
      ASSERT_EQ(kvshm_clear(pool.a), 64);
    }
  }
}

TEST(Uses, IsWrittenByManyAtOnce) {
  Pool pool({.blocks = 16});
  kvshm::Arena& a = inner(pool.a);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; t++)
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 20000; i++) {
        kvshm::remember(a, key_number(i % 50 + std::uint64_t(t)), unsigned(i % 16));
        EXPECT_LE(kvshm::recall(a, key_number(i % 60)), 15u);
        if (i % 1000 == 0) a.sb->age_epoch.fetch_add(1);
      }
    });
  for (auto& t : threads) t.join();
}
