// SPDX-License-Identifier: Apache-2.0
// One process moves for all: who it is, what goes down and when, what it does before what, and what
// becomes of its work when it is killed in the midst.
#include <algorithm>

#include "capi/call.hpp"
#include "disk_support.hpp"
#include "tier/queues.hpp"
#include "tier_support.hpp"

namespace {
using namespace kvshm_test;

constexpr std::uint64_t kBytes = 4096;

unsigned stored(kvshm_arena* a, const keys_t& keys) {
  std::vector<std::uint8_t> s(keys.size());
  EXPECT_EQ(kvshm_tier_status(a, raw(keys), std::uint32_t(keys.size()), s.data()), 0);
  return unsigned(std::count(s.begin(), s.end(), KVSHM_TS_STORED));
}
bool await_stored(kvshm_arena* a, const keys_t& keys, unsigned n, int ms = 10000) {
  for (const std::int64_t end = now_ms() + ms; now_ms() < end; usleep(2000))
    if (stored(a, keys) == n) return true;
  return false;
}
handles_t handles_of(kvshm_arena* a, const keys_t& keys) {
  handles_t out;
  for (const auto& k : keys) {
    kvshm_handle h;
    EXPECT_EQ(kvshm_acquire(a, *raw(k), KVSHM_NO_TOUCH, &h), 0);
    out.push_back(h);
    kvshm_drop(a, &h, 1);
  }
  return out;
}
TierSpec with(std::uint32_t write, std::uint32_t mover = KVSHM_AUTO) {
  TierSpec s;
  s.write = write;
  s.mover = mover;
  return s;
}

struct Two {  // a handle that only offers, and a file
  explicit Two(const char* what, const TierSpec& offers, std::uint64_t blocks = 64)
      : file(what), pool({blocks, kBytes}) {
    TierSpec s = offers;
    s.mover = KVSHM_OFF;
    EXPECT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
  }
  // From now on somebody moves.
  kvshm_arena* mover(const TierSpec& s = {}) {
    kvshm_arena* a = pool.another();
    EXPECT_EQ(open_tier(a, file.path, s), 0) << kvshm_last_error();
    EXPECT_TRUE(await_tier(a));
    EXPECT_TRUE(await_tier(pool.a));
    return a;
  }
  TierFile file;
  Pool pool;
};

TEST(TierLead, OneMovesForAll) {
  TierFile file("one");
  Pool pool({64, kBytes});
  ASSERT_EQ(open_tier(pool.a, file.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(pool.a));
  kvshm_arena* other = pool.another();
  ASSERT_EQ(open_tier(other, file.path), 0) << kvshm_last_error();
  ASSERT_TRUE(await_tier(other));
  EXPECT_EQ(tier_of(pool.a).mover, 1u);
  EXPECT_EQ(tier_of(other).mover, 2u);
  EXPECT_EQ(tier_of(other).mover_pid, std::uint32_t(getpid()));
  const keys_t keys = keys_of(1, 16), more = keys_of(100, 8), rest = keys_of(200, 8);
  cache_chain(other, keys);
  EXPECT_EQ(kvshm_tier_drain(other, 10000), 0);
  EXPECT_EQ(stored(other, keys), 16u);
  auto own = sized<kvshm_stats>();
  ASSERT_EQ(kvshm_get_own_stats(other, &own), 0);
  EXPECT_EQ(own.tier_stored_total, 0u) << "not by its own thread";
  // One without a tier offers, too, by the mover's rule.
  kvshm_arena* plain = pool.another();
  cache_chain(plain, more);
  EXPECT_TRUE(await_stored(other, more, 8));
  EXPECT_EQ(kvshm_elect(pool.a, KVSHM_POST_MOVER), -EBUSY);
  EXPECT_EQ(kvshm_resign(pool.a, KVSHM_POST_MOVER), -EBUSY);
  // It goes, and the other one takes over.
  ASSERT_EQ(kvshm_close(pool.a, 10000), 0);
  pool.a = nullptr;
  cache_chain(plain, rest);
  EXPECT_TRUE(await_stored(other, rest, 8));
  EXPECT_EQ(tier_of(other).mover, 1u);
  pool.a = other;
  EXPECT_EQ(broken_image(other), "");
}

// The batch that was under way is not lost, and no more than a look is wasted.
void kill_in_mid_batch(bool control, unsigned* out) {
  TierFile file("takeover");
  Pool pool({256, kBytes});
  kvshm::File disk;
  const keys_t keys = keys_of(1, 200);
  {
    TierSpec s = with(KVSHM_TIER_WRITE_OFF, KVSHM_OFF);
    ASSERT_EQ(open_tier(pool.a, file.path, s), 0) << kvshm_last_error();
  }
  disk = kvshm::File(open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  SlowDisk slow(disk.get(), 1 << 20, 200000);
  if (!slow.works()) GTEST_SKIP() << "the disk cannot be made slow: " << slow.why_not();
  Child mover([&](Wire& wire) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a && open_tier(a, file.path) == 0 && await_tier(a));
    wire.tell();
    for (;;) pause();
  });
  ASSERT_TRUE(mover.listen());
  slow.take(mover.pid());
  ASSERT_TRUE(await_tier(pool.a));
  for (const auto& k : keys) make_cached(pool.a, k);
  const handles_t h = handles_of(pool.a, keys);
  ASSERT_EQ(kvshm_tier_store(pool.a, h.data(), 200), 200);
  for (int i = 0; i < 1000 && !stored(pool.a, keys); i++) usleep(2000);
  const unsigned before = stored(pool.a, keys);
  EXPECT_GT(before, 0u);
  EXPECT_LT(before, 190u) << "nothing was in its midst";
  mover.kill();
  kvshm::tier::take_over_nothing = control;
  kvshm_arena* next = pool.another();
  ASSERT_EQ(open_tier(next, file.path), 0) << kvshm_last_error();
  EXPECT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
  await_stored(pool.a, keys, 200, control ? 1000 : 10000);
  *out = stored(pool.a, keys);
  kvshm::tier::take_over_nothing = false;
  EXPECT_EQ(broken(pool.a), "");
  // The dead one's slots are nobody's until the kernel has landed what it was writing.
  for (int i = 0; i < 500 && broken_image(pool.a) != ""; i++) usleep(20000);
  EXPECT_EQ(broken_image(pool.a), "");
  kvshm_clear(pool.a);
  EXPECT_EQ(load_chain(pool.a, keys_of(1, 1)).right, 1u);
}

TEST(TierLead, WhoTakesOverEndsWhatWasBegun) {
  unsigned n = 0;
  kill_in_mid_batch(false, &n);
  if (!IsSkipped()) {
    EXPECT_EQ(n, 200u);
  }
}

TEST(TierLead, ControlASuccessorThatForgetsLosesSome) {
  unsigned n = 200;
  kill_in_mid_batch(true, &n);
  if (!IsSkipped()) {
    EXPECT_LT(n, 200u);
  }
}

// A leader that was killed while its disk hung says nothing about anybody else's, whoever has its slot.
TEST(TierLead, AStallThatIsOverIsForgotten) {
  Two t("forgotten", {});
  kvshm_arena* a = t.mover();
  kvshm_arena* image = attach(tier_of(a).image);
  ASSERT_NE(image, nullptr);
  const unsigned slot = image->impl->queues->mover.slot.load() - 1;
  auto& word = image->impl->slots[slot].tier.word;
  // As the dead one leaves it: its note, and its word.
  ASSERT_EQ(kvshm_close(a, 10000), 0);
  word = KVSHM_TIER_STALLED;
  image->impl->queues->mover.slot = slot + 1;
  TierSpec s;
  s.mover = KVSHM_OFF;
  kvshm_arena* next = t.pool.another();
  ASSERT_EQ(open_tier(next, t.file.path, s), 0) << kvshm_last_error();
  EXPECT_TRUE(await_tier(next));
  EXPECT_TRUE(await_tier(t.pool.a));
  usleep(1200000);
  EXPECT_EQ(tier_of(next).state, KVSHM_TIER_OK);
  EXPECT_EQ(tier_of(t.pool.a).state, KVSHM_TIER_OK);
  kvshm_close(image, 1000);
}

TEST(TierLead, LazyGathers) {
  TierSpec s = with(KVSHM_TIER_WRITE_LAZY);
  s.gather = 32 * kBytes;
  s.age_ms = 60000;
  Two t("lazy", s);
  t.mover(s);
  const keys_t few = keys_of(1, 8), many = keys_of(100, 24), old = keys_of(300, 2);
  cache_chain(t.pool.a, few);
  usleep(200000);
  EXPECT_EQ(stored(t.pool.a, few), 0u);
  EXPECT_EQ(tier_of(t.pool.a).queued, 8u);
  ASSERT_EQ(kvshm_tier_flush(t.pool.a), 0);
  EXPECT_TRUE(await_stored(t.pool.a, few, 8)) << "an engine idles";
  cache_chain(t.pool.a, few);
  cache_chain(t.pool.a, many);
  usleep(100000);
  EXPECT_EQ(stored(t.pool.a, many), 0u);
  const keys_t last = keys_of(200, 8);
  cache_chain(t.pool.a, last);
  EXPECT_TRUE(await_stored(t.pool.a, many, 24)) << "enough";
}

TEST(TierLead, LazyGrowsOld) {
  TierSpec s = with(KVSHM_TIER_WRITE_LAZY);
  s.age_ms = 300;
  Two t("old", s);
  t.mover(s);
  const keys_t keys = keys_of(1, 4);
  const std::int64_t before = now_ms();
  cache_chain(t.pool.a, keys);
  EXPECT_TRUE(await_stored(t.pool.a, keys, 4));
  EXPECT_GE(now_ms() - before, 290);
}

TEST(TierLead, IdleWritesWhenToldAlone) {
  TierSpec s = with(KVSHM_TIER_WRITE_IDLE);
  s.age_ms = 1;
  s.gather = kBytes;
  Two t("idle", s);
  t.mover(s);
  const keys_t keys = keys_of(1, 16);
  cache_chain(t.pool.a, keys);
  usleep(300000);
  EXPECT_EQ(stored(t.pool.a, keys), 0u);
  EXPECT_EQ(kvshm_tier_drain(t.pool.a, 10000), 0);
  EXPECT_EQ(stored(t.pool.a, keys), 16u);
}

TEST(TierLead, AtRelease) {
  Two t("release", with(KVSHM_TIER_WRITE_RELEASE));
  t.mover(with(KVSHM_TIER_WRITE_RELEASE));
  const keys_t keys = keys_of(1, 8);
  handles_t h(8);
  ASSERT_EQ(kvshm_allocate(t.pool.a, 8, raw(keys), nullptr, h.data(), nullptr, nullptr), 0);
  for (std::size_t i = 0; i < 8; i++) write_payload(t.pool.a, h[i].id, keys[i]);
  ASSERT_EQ(kvshm_register(t.pool.a, h.data(), 8, nullptr, KVSHM_ALLOW, h.data(), nullptr), 8);
  kvshm_lease lease;
  ASSERT_EQ(kvshm_lease_make(t.pool.a, h.data(), 8, 0, &lease), 0);
  usleep(100000);
  EXPECT_EQ(stored(t.pool.a, keys), 0u);
  ASSERT_EQ(kvshm_release(t.pool.a, lease), 0);
  EXPECT_TRUE(await_stored(t.pool.a, keys, 8));
  // A fill that is left after it was published is given back, too.
  const keys_t left = keys_of(100, 2);
  handles_t f(2);
  ASSERT_EQ(kvshm_allocate(t.pool.a, 2, raw(left), nullptr, f.data(), nullptr, nullptr), 0);
  ASSERT_EQ(kvshm_fill_begin(t.pool.a, f[0], 0), 0);
  write_payload(t.pool.a, f[0].id, left[0]);
  ASSERT_EQ(kvshm_fill_arrive(t.pool.a, f[0], 0), 0);
  ASSERT_EQ(kvshm_publish(t.pool.a, f[0]), 0);
  ASSERT_EQ(kvshm_abort(t.pool.a, f.data(), 2), 0);
  EXPECT_TRUE(await_stored(t.pool.a, left, 1));
  const keys_t chain = keys_of(200, 40);  // dropped: tail first, offered head first
  cache_chain(t.pool.a, chain);
  EXPECT_TRUE(await_stored(t.pool.a, chain, 40));
  // And no second time.
  const std::uint64_t offered = stats(t.pool.a).tier_offered_total;
  std::uint32_t ids[8];
  ASSERT_EQ(kvshm_match(t.pool.a, raw(keys), 8, ids, &lease), 8);
  ASSERT_EQ(kvshm_release(t.pool.a, lease), 0);
  EXPECT_EQ(stats(t.pool.a).tier_offered_total, offered);
}

TEST(TierLead, BelowTheWatermarkWhatWouldGoNext) {
  TierSpec s = with(KVSHM_TIER_WRITE_WATERMARK);
  s.low = 500;
  Two t("water", s);
  t.mover(s);
  const keys_t first = keys_of(1, 24), second = keys_of(100, 24);
  for (const auto& k : first) make_cached(t.pool.a, k);
  usleep(300000);
  EXPECT_EQ(stored(t.pool.a, first), 0u) << "40 of 64 are free";
  for (const auto& k : second) make_cached(t.pool.a, k);
  EXPECT_TRUE(await_stored(t.pool.a, first, 24)) << "16 of 64 are free";
}

TEST(TierLead, WhatIsAskedForGoesFirst) {
  Two t("asked", with(KVSHM_TIER_WRITE_THROUGH), 512);
  keys_t usual = keys_of(1, 60), asked;
  for (const auto& k : usual) make_cached(t.pool.a, k);
  asked.assign(usual.begin() + 40, usual.end());
  usual.resize(40);
  const handles_t h = handles_of(t.pool.a, asked);
  ASSERT_EQ(kvshm_tier_store(t.pool.a, h.data(), 20), 20);
  TierSpec s;
  s.stores = 1;
  t.mover(s);
  unsigned early = 0;
  for (const std::int64_t end = now_ms() + 20000; stored(t.pool.a, asked) < 20 && now_ms() < end;)
    early = std::max(early, stored(t.pool.a, usual));
  EXPECT_EQ(stored(t.pool.a, asked), 20u);
  EXPECT_LE(early, 20u) << "a page of records is written for several";
  EXPECT_TRUE(await_stored(t.pool.a, usual, 40));
}

TEST(TierLead, CancelledBeforeItIsBegun) {
  Two t("cancel", with(KVSHM_TIER_WRITE_THROUGH));
  const keys_t keys = keys_of(1, 10);
  for (const auto& k : keys) make_cached(t.pool.a, k);
  const handles_t h = handles_of(t.pool.a, keys);
  EXPECT_EQ(kvshm_tier_cancel(t.pool.a, h.data() + 6, 4), 4);
  EXPECT_EQ(kvshm_tier_cancel(t.pool.a, h.data() + 6, 4), 0);
  t.mover();
  EXPECT_EQ(kvshm_tier_drain(t.pool.a, 10000), 0);
  EXPECT_EQ(stored(t.pool.a, keys), 6u);
  EXPECT_EQ(kvshm_tier_cancel(t.pool.a, h.data(), 10), 0) << "all are done";
  EXPECT_EQ(stats(t.pool.a).tier_cancelled_total, 4u);
}

TEST(TierLead, AFullQueueDropsAndSaysSo) {
  TierSpec s = with(KVSHM_TIER_WRITE_THROUGH);
  s.queue = 8;
  Two t("bounded", s);
  const keys_t keys = keys_of(1, 20);
  for (const auto& k : keys) make_cached(t.pool.a, k);
  EXPECT_EQ(tier_of(t.pool.a).queued, 8u);
  EXPECT_EQ(tier_of(t.pool.a).mover, 0u);
  EXPECT_EQ(stats(t.pool.a).tier_dropped_total, 12u);
  EXPECT_EQ(kvshm_tier_drain(t.pool.a, 100), -ETIMEDOUT) << "nobody moves";
  t.mover();
  EXPECT_EQ(kvshm_tier_drain(t.pool.a, 10000), 0);
  EXPECT_EQ(stored(t.pool.a, keys), 8u);
}

TEST(TierLead, ShortPrefixesAndLowPrioritiesStayInMemory) {
  TierSpec s;
  s.min_prefix = 4;
  s.min_priority = 40;
  Two t("filters", {});
  t.mover(s);
  const keys_t three = keys_of(1, 3), five = keys_of(100, 5), low = keys_of(200, 5);
  cache_chain(t.pool.a, three);
  cache_chain(t.pool.a, five);
  handles_t h(5);
  auto o = sized<kvshm_fill_options>();
  o.priority = 20;
  ASSERT_EQ(kvshm_allocate(t.pool.a, 5, raw(low), &o, h.data(), nullptr, nullptr), 0);
  ASSERT_EQ(kvshm_register(t.pool.a, h.data(), 5, nullptr, KVSHM_ALLOW, h.data(), nullptr), 5);
  ASSERT_EQ(kvshm_drop(t.pool.a, h.data(), 5), 0);
  EXPECT_EQ(kvshm_tier_drain(t.pool.a, 10000), 0);
  EXPECT_EQ(stored(t.pool.a, three), 0u);
  EXPECT_EQ(stored(t.pool.a, five), 5u) << "heads go with their tails";
  EXPECT_EQ(stored(t.pool.a, low), 0u);
}

// Item 46, over processes: one offer each by two of them.
TEST(TierLead, OffersOfAllProcessesCountTogether) {
  TierSpec s;
  s.admit = 2;
  Two t("admit", {});
  t.mover(s);
  const keys_t keys = keys_of(1, 6);
  for (const auto& k : keys) make_cached(t.pool.a, k);
  EXPECT_EQ(kvshm_tier_drain(t.pool.a, 10000), 0);
  EXPECT_EQ(stored(t.pool.a, keys), 0u);
  EXPECT_EQ(stats(t.pool.a).tier_rejected_total, 6u);
  kvshm_arena* plain = t.pool.another();
  const keys_t some(keys.begin(), keys.begin() + 3);
  kvshm_evict(t.pool.a, raw(keys), 6);
  for (const auto& k : some) make_cached(plain, k);
  EXPECT_TRUE(await_stored(t.pool.a, some, 3));
  EXPECT_EQ(stored(t.pool.a, keys), 3u);
}

TEST(TierLead, PrefetchBringsAheadAndHoldsNothing) {
  Two t("ahead", {});
  kvshm_arena* mover = t.mover();
  const keys_t keys = keys_of(1, 24), unknown = keys_of(500, 4);
  cache_chain(t.pool.a, keys);
  EXPECT_EQ(kvshm_tier_drain(t.pool.a, 10000), 0);
  ASSERT_EQ(kvshm_clear(t.pool.a), 24);
  kvshm_arena* plain = t.pool.another();  // whoever asks
  EXPECT_EQ(kvshm_prefetch(plain, raw(unknown), 4), 4);
  EXPECT_EQ(kvshm_prefetch(plain, raw(keys), 24), 24);
  std::uint8_t in_memory[24] = {};
  auto there = [&] {
    kvshm_presence(plain, raw(keys), 24, in_memory);
    return std::count(in_memory, in_memory + 24, 1);
  };
  for (int i = 0; i < 5000 && there() < 24; i++) usleep(2000);
  EXPECT_EQ(there(), 24);
  EXPECT_EQ(stats(plain).blocks_held, 0u);
  EXPECT_EQ(stats(plain).tier_prefetched_total, 24u);
  std::uint32_t ids[24];
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(plain, raw(keys), 24, ids, &lease), 24);
  for (unsigned i = 0; i < 24; i++) EXPECT_TRUE(payload_right(plain, ids[i], keys[i])) << i;
  kvshm_release(plain, lease);
  EXPECT_EQ(tier_of(mover).fetching, 0u);
  EXPECT_EQ(broken(plain), "");
}

}  // namespace
