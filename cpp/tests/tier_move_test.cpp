// SPDX-License-Identifier: Apache-2.0
// Blocks between the tiers, by many at once: one transfer for all who ask, bookkeeping, admission.
#include <atomic>
#include <random>
#include <thread>

#include "tier/admission.hpp"
#include "tier_support.hpp"

namespace {
using namespace kvshm_test;

TEST(TierMove, ManyAskersOneTransfer) {
  TierFile file("single");
  Pool pool(
      {128, 65536});  // room for all askers at once, before they find out that they ask the same
  kvshm_arena* other = pool.another();
  TierSpec s;
  s.bytes = 16 << 20;
  ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
  ASSERT_EQ(open_tier(other, file.path, s), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a) && await_tier(other));
  const keys_t keys = keys_of(1, 16);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  for (int round = 0; round < 20; round++) {
    ASSERT_EQ(kvshm_clear(pool.a), 16);
    const std::uint64_t before = stats(pool.a).tier_loaded_total;
    std::vector<std::thread> threads;
    std::atomic<int> right{0};
    for (int t = 0; t < 6; t++)
      threads.emplace_back(
          [&, t] { right += int(load_chain(t % 2 ? other : pool.a, keys).right); });
    for (auto& t : threads) t.join();
    EXPECT_EQ(right, 6 * 16) << round;
    EXPECT_EQ(stats(pool.a).tier_loaded_total - before, 16u) << round;
  }
}

TEST(TierMove, SameKeysStoredByManyAtOnce) {
  TierFile file("same");
  Pool pool({256, 4096});
  std::vector<Child> children;
  const keys_t keys = keys_of(1, 32);
  for (int c = 0; c < 4; c++)
    children.emplace_back([&](Wire& wire) {
      CHILD_CHECK(wire.listen() == '.');
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a && open_tier(a, file.path) == 0 && await_tier(a));
      for (int round = 0; round < 50; round++) {
        handles_t h(32);
        if (kvshm_allocate(a, 32, raw(keys), nullptr, h.data(), nullptr, nullptr)) continue;
        for (std::size_t i = 0; i < 32; i++) write_payload(a, h[i].id, keys[i]);
        CHILD_CHECK(kvshm_register(a, h.data(), 32, nullptr, KVSHM_REJECT, h.data(), nullptr) ==
                    32);
        kvshm_drop(a, h.data(), 32);
        if (round % 5 != 4) continue;
        CHILD_CHECK(kvshm_tier_drain(a, 20000) == 0);  // by whoever moves
        kvshm_evict(a, raw(keys), 32);
      }
      CHILD_CHECK(kvshm_tier_drain(a, 20000) == 0);
      CHILD_CHECK(kvshm_close(a, 10000) == 0);
      return 0;
    });
  for (Child& c : children) c.tell();  // they make the file, too
  for (Child& c : children) EXPECT_EQ(c.wait(), 0);
  ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  kvshm_clear(pool.a);
  EXPECT_EQ(tier_of(pool.a).slots_ready, 32u) << "one slot a key";
  EXPECT_EQ(load_chain(pool.a, keys).right, 32u);
  EXPECT_EQ(broken(pool.a), "");
  EXPECT_EQ(broken_image(pool.a), "");
}

// Item 20 of the scenarios: random operations with moves between the tiers.
TEST(TierMove, BookkeepingUnderRandomMoves) {
  TierFile file("random");
  Pool pool({48, 4096});
  kvshm_arena* other = pool.another();
  TierSpec s;
  s.bytes = 120 * 4096;  // a tier that evicts, too
  ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
  ASSERT_EQ(open_tier(other, file.path, s), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a) && await_tier(other));
  std::atomic<std::uint64_t> wrong{0}, right{0};
  for (int round = 0; round < 6; round++) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
      threads.emplace_back([&, t] {
        std::mt19937_64 dice(std::uint64_t(round * 10 + t));
        kvshm_arena* a = t % 2 ? other : pool.a;
        for (int op = 0; op < 400; op++) {
          const keys_t keys = keys_of(1 + dice() % 60 * 8, 1 + dice() % 6);
          const auto n = std::uint32_t(keys.size());
          const unsigned what = unsigned(dice() % 10);
          if (what < 5) {
            handles_t h(n);
            if (kvshm_allocate(a, n, raw(keys), nullptr, h.data(), nullptr, nullptr)) continue;
            if (what == 0) {
              kvshm_abort(a, h.data(), n);
              continue;
            }
            for (std::size_t i = 0; i < n; i++) write_payload(a, h[i].id, keys[i]);
            kvshm_register(a, h.data(), n, nullptr, KVSHM_ALLOW, h.data(), nullptr);
            kvshm_drop(a, h.data(), n);
          } else if (what < 9) {
            kvshm_load* load = nullptr;
            const std::int64_t got = kvshm_match_load(a, raw(keys), n, 0, 0, &load, nullptr);
            if (got <= 0) continue;
            if (what != 5) {  // 5: given up while it is under way
              kvshm_load_wait(load, 20000);
              std::uint32_t ids[8];
              kvshm_load_status(load, nullptr, ids);
              for (std::int64_t i = 0; i < got; i++)
                if (ids[i] != KVSHM_NONE)
                  ++(payload_right(a, ids[i], keys[std::size_t(i)]) ? right : wrong);
            }
            if (what == 6) {
              kvshm_lease lease;
              if (kvshm_load_lease(load, &lease) > 0) kvshm_release(a, lease);
            }
            kvshm_load_free(load);
          } else {
            kvshm_evict(a, raw(keys), n);
          }
        }
      });
    for (auto& t : threads) t.join();
    ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
    ASSERT_EQ(kvshm_tier_drain(other, 20000), 0);
    usleep(20000);  // loads that nobody waited for
    EXPECT_EQ(broken(pool.a), "") << round;
    EXPECT_EQ(broken_image(pool.a), "") << round;
    EXPECT_EQ(wrong_payloads(pool.a), "") << round;
    const kvshm_stats st = stats(pool.a);
    EXPECT_EQ(st.blocks_free + st.blocks_inactive, st.blocks_total) << "nothing is held at rest";
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(right, 500u);
  EXPECT_GT(stats(pool.a).tier_loaded_total, 100u);
}

TEST(TierMove, ADiskThatIsFullOfOthersEvicts) {
  TierFile file("evicts");
  Pool pool({16, 4096});
  TierSpec s;
  s.bytes = 40 * 4096;
  ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const std::uint64_t slots = tier_of(pool.a).slots;
  for (std::uint64_t c = 0; c < 40; c++) {
    cache_chain(pool.a, keys_of(1 + c * 8, 8));
    ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
    EXPECT_LE(tier_of(pool.a).slots_ready, slots);
  }
  EXPECT_GE(tier_of(pool.a).slots_ready, slots * 8 / 10);
  EXPECT_EQ(load_chain(pool.a, keys_of(1 + 39 * 8, 8)).right, 8u);
}

// The head comes no later than the tail, whatever the order of the offers.
TEST(TierMove, ATailBringsItsHeadAlong) {
  TierFile file("head");
  Pool pool({32, 4096});
  TierSpec s;
  s.write = KVSHM_TIER_WRITE_OFF;
  ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 10);
  cache_chain(pool.a, keys);
  std::uint32_t ids[10];
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(keys), 10, ids, &lease), 10);
  kvshm_handle last;
  ASSERT_EQ(kvshm_handle_of(pool.a, ids[9], &last), 0);
  EXPECT_EQ(kvshm_tier_store(pool.a, &last, 1), 1);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  ASSERT_EQ(kvshm_release(pool.a, lease), 0);
  const kvshm_stats s2 = stats(pool.a);
  EXPECT_EQ(tier_of(pool.a).slots_ready, 10u)
      << "stored " << s2.tier_stored_total << ", dropped " << s2.tier_dropped_total << ", present "
      << s2.tier_present_total << ", failed " << s2.tier_store_failed_total << ", rejected "
      << s2.tier_rejected_total;
  ASSERT_EQ(kvshm_clear(pool.a), 10);
  EXPECT_EQ(load_chain(pool.a, keys).right, 10u);
}

TEST(TierMove, PresenceSaysWhere) {
  TierFile file("presence");
  Pool pool({32, 4096});
  ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 4);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  std::uint8_t mask[4];
  EXPECT_EQ(kvshm_presence(pool.a, raw(keys), 4, mask), 4);
  EXPECT_EQ(mask[0], KVSHM_IN_G2 | KVSHM_IN_G3);
  kvshm_clear(pool.a);
  EXPECT_EQ(kvshm_presence(pool.a, raw(keys), 4, mask), 4);
  EXPECT_EQ(mask[0], KVSHM_IN_G3);
  EXPECT_EQ(kvshm_tier_clear(pool.a, 10000), 4) << kvshm_last_error();
  EXPECT_EQ(kvshm_presence(pool.a, raw(keys), 4, mask), 0);
}

TEST(TierMove, ClearedSlotsStayAwayAfterAReboot) {
  TierFile file("cleared");
  const keys_t keys = keys_of(1, 12);
  {
    Pool pool({32, 4096});
    ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
    ASSERT_TRUE(await_tier(pool.a));
    cache_chain(pool.a, keys);
    ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
    ASSERT_EQ(kvshm_tier_clear(pool.a, 10000), 12);
    reboot(pool);
  }
  Pool pool({32, 4096});
  ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  EXPECT_EQ(tier_of(pool.a).slots_ready, 0u);
}

TEST(TierMove, AnEpochOutlivesAReboot) {
  TierFile file("epoch");
  {
    Pool pool({32, 4096});
    ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
    ASSERT_EQ(kvshm_bump_epoch(pool.a), 1);
    ASSERT_EQ(kvshm_bump_epoch(pool.a), 2);
    usleep(1200000);  // it is written within half a second
    reboot(pool);
  }
  Pool pool({32, 4096});
  ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
  std::uint32_t epoch = 0;
  ASSERT_EQ(kvshm_space_epoch(pool.a, &epoch), 0);
  EXPECT_EQ(epoch, 2u);
}

TEST(TierMove, AnEpochIsWrittenAtTheLatestAtClose) {
  TierFile file("close");
  {
    Pool pool({32, 4096});
    ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
    for (int i = 1; i <= 5; i++) {
      ASSERT_EQ(kvshm_bump_epoch(pool.a), i);
      if (i == 2) usleep(700000);  // one of them on its way by itself
    }
    pool.leave();
  }
  Pool pool({32, 4096});
  ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
  std::uint32_t epoch = 0;
  ASSERT_EQ(kvshm_space_epoch(pool.a, &epoch), 0);
  EXPECT_EQ(epoch, 5u);
}

// Who comes with another file under the name of the one in use is refused, however often he asks.
TEST(TierMove, AReplacedFileIsRefusedWhileTheOldOneIsInUse) {
  TierFile file("replaced");
  Pool pool({32, 4096});
  kvshm_arena* other = pool.another();
  ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 4);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  ASSERT_EQ(unlink(file.path.c_str()), 0);
  for (int i = 0; i < 3; i++)
    EXPECT_EQ(open_tier(other, file.path), -KVSHM_EINUSE) << kvshm_last_error();
  kvshm_clear(pool.a);
  EXPECT_EQ(load_chain(pool.a, keys).right, 4u) << "the old one serves on";
  pool.leave();
  ASSERT_EQ(open_tier(other, file.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(other));
  EXPECT_EQ(tier_of(other).slots_ready, 0u);
}

// A load that its asker gives up before it has begun reads nothing.
TEST(TierMove, LoadsGivenUpAreDropped) {
  TierFile file("dropped");
  Pool pool({64, 1 << 20});
  TierSpec s;
  s.bytes = 80 << 20;
  ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 60);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
  ASSERT_EQ(kvshm_clear(pool.a), 60);
  kvshm_load* load = nullptr;
  ASSERT_EQ(kvshm_match_load(pool.a, raw(keys), 60, 0, 0, &load, nullptr), 60);
  kvshm_load_free(load);
  kvshm_stats st = stats(pool.a);
  for (int i = 0; i < 1000 && st.blocks_filling; i++, st = stats(pool.a)) usleep(5000);
  EXPECT_EQ(st.blocks_filling, 0u);
  EXPECT_LT(st.tier_loaded_total, 40u);
  EXPECT_EQ(load_chain(pool.a, keys).right, 60u);
}

// Item 46 of the semantics.
TEST(Semantics, S46_AdmissionToTheDisk) {
  const auto key = [](std::uint64_t n) { return kvshm::Key{n * 0x9e3779b97f4a7c15u, ~n}; };
  kvshm::tier::Admission twice(2, 256);
  EXPECT_FALSE(twice.offer(key(1)));
  EXPECT_TRUE(twice.offer(key(1)));
  for (std::uint64_t i = 0; i < 16 * 256 * 8; i++) twice.offer(key(1000 + i % 7));  // time goes by
  EXPECT_FALSE(twice.offer(key(1))) << "decayed";
  kvshm::tier::Admission all(0);
  for (std::uint64_t i = 0; i < 100; i++) EXPECT_TRUE(all.offer(key(i)));
}

TEST(TierMove, WithAdmissionTheSecondUseIsWritten) {
  TierFile file("admit");
  Pool pool({32, 4096});
  TierSpec s;
  s.admit = 2;
  ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  const keys_t keys = keys_of(1, 6);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  EXPECT_EQ(tier_of(pool.a).slots_ready, 0u);
  EXPECT_EQ(stats(pool.a).tier_rejected_total, 6u);
  EXPECT_EQ(load_chain(pool.a, keys).right, 6u);  // a use
  ASSERT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  EXPECT_EQ(tier_of(pool.a).slots_ready, 6u);
}

}  // namespace
