// SPDX-License-Identifier: Apache-2.0
// The quota that a process sets itself: what adds a block beyond it is refused, in words; holds of
// a block that it has, and everything that gives back, go on; without one nothing is counted.
#include <thread>

#include "capi/call.hpp"
#include "support.hpp"

using namespace kvshm_test;

namespace {

kvshm_arena* attach_with(const std::string& name, std::uint64_t quota) {
  kvshm_options o = options({.blocks = 0, .block_bytes = 0});
  o.quota = quota;
  kvshm_arena* a = nullptr;
  EXPECT_EQ(kvshm_attach(&a, name.c_str(), &o), 0) << kvshm_last_error();
  return a;
}

std::uint64_t counted(kvshm_arena* a) { return a->impl->holding.load(); }

// What the words say: blocks that this process holds or fills.
std::uint64_t in_words(kvshm_arena* a) {
  std::uint64_t n = 0;
  for (std::uint32_t id = 0; id < a->impl->nblocks; id++)
    n += (block(a, id).holders >> a->impl->slot) & 1;
  return n;
}

struct Scene {
  Pool pool{{.blocks = 32, .block_bytes = 128}};
  keys_t cached = keys_of(0, 8);
  kvshm_arena* a = attach_with(pool.name, 4);
  Scene() {
    for (auto& k : cached) make_cached(pool.a, k);
  }
  ~Scene() { EXPECT_EQ(kvshm_close(a, 1000), 0); }
};

#define EXPECT_COUNTS(a, n)    \
  do {                         \
    EXPECT_EQ(counted(a), n);  \
    EXPECT_EQ(in_words(a), n); \
  } while (0)

}  // namespace

TEST(Quota, RefusesInWordsAndTakesNothing) {
  Scene s;
  const handles_t fills = fill_blocks(s.a, 3);
  kvshm_handle h[3];
  ASSERT_EQ(kvshm_allocate(s.a, 2, nullptr, nullptr, h, nullptr, nullptr), -KVSHM_EQUOTA);
  const std::string why = kvshm_last_error();
  EXPECT_NE(why.find("holds or fills 3 blocks"), std::string::npos) << why;
  EXPECT_NE(why.find("quota is 4"), std::string::npos) << why;
  EXPECT_COUNTS(s.a, 3u);
  EXPECT_EQ(own_stats(s.a).quota_refused_total, 1u);
  auto wait = sized<kvshm_fill_options>();
  wait.timeout_ms = 60000;  // no waiting for oneself
  EXPECT_EQ(kvshm_allocate(s.a, 2, nullptr, &wait, h, nullptr, nullptr), -KVSHM_EQUOTA);

  ASSERT_EQ(kvshm_acquire(s.a, s.cached[0].data(), 0, &h[0]), 0);
  EXPECT_EQ(kvshm_acquire(s.a, s.cached[1].data(), 0, &h[1]), -KVSHM_EQUOTA);
  EXPECT_EQ(kvshm_acquire(s.a, key_of(999).data(), 0, &h[1]), -ENOENT);  // there is none anyway
  EXPECT_EQ(kvshm_acquire(s.a, s.cached[0].data(), 0, &h[1]), 0);        // held already
  EXPECT_EQ(kvshm_upgrade(s.a, h[0], 0), 0);
  EXPECT_COUNTS(s.a, 4u);
  ASSERT_EQ(kvshm_acquire(s.pool.a, s.cached[1].data(), 0, &h[2]), 0);
  EXPECT_EQ(kvshm_upgrade(s.a, h[2], 0), -KVSHM_EQUOTA);
  const handles_t other = fill_blocks(s.pool.a, 1);
  EXPECT_EQ(kvshm_fill_join(s.a, other[0]), -KVSHM_EQUOTA);
  EXPECT_NE(std::string(kvshm_last_error()).find("quota"), std::string::npos);

  for (int i = 0; i < 3; i++) EXPECT_EQ(drop(s.a, h[0]), 0);
  EXPECT_EQ(abort_fills(s.a, fills), 0);
  EXPECT_COUNTS(s.a, 0u);
  EXPECT_EQ(kvshm_fill_join(s.a, other[0]), 0);
  EXPECT_COUNTS(s.a, 1u);
  EXPECT_EQ(kvshm_abort(s.a, other.data(), 1), 0);
  EXPECT_COUNTS(s.a, 0u);
  EXPECT_EQ(abort_fills(s.pool.a, other), 0);
  EXPECT_EQ(drop(s.pool.a, h[2]), 0);
  EXPECT_EQ(broken(s.a), "");
}

TEST(Quota, LookUpsHoldWhatFits) {
  Scene s;
  std::uint32_t ids[8], which[8];
  kvshm_lease lease = 0, more = 0;
  ASSERT_EQ(kvshm_match(s.a, raw(s.cached), 8, ids, &lease), 4);
  EXPECT_COUNTS(s.a, 4u);
  EXPECT_EQ(kvshm_match(s.a, raw(s.cached) + 4, 4, ids, &more), -KVSHM_EQUOTA);
  EXPECT_EQ(kvshm_match_scattered(s.a, raw(s.cached) + 4, 4, 0, 0, ids, &more), -KVSHM_EQUOTA);
  EXPECT_EQ(kvshm_scan(s.a, raw(s.cached) + 4, 4, 0, 0, ids, which, &more), -KVSHM_EQUOTA);
  EXPECT_EQ(more, 0u);
  EXPECT_EQ(kvshm_match(s.a, raw(s.cached), 4, ids, &more), 4);  // the same blocks once more
  EXPECT_EQ(kvshm_release(s.a, more), 0);
  EXPECT_EQ(kvshm_lease_trim(s.a, lease, 3), 0);
  EXPECT_COUNTS(s.a, 3u);
  ASSERT_EQ(kvshm_match_scattered(s.a, raw(s.cached), 8, 0, 0, ids, &more), 4);
  EXPECT_EQ(ids[4], KVSHM_NONE);
  EXPECT_EQ(kvshm_release(s.a, more), 0);
  EXPECT_EQ(kvshm_release(s.a, lease), 0);
  EXPECT_COUNTS(s.a, 0u);
  handles_t all;
  for (auto& k : s.cached) {
    kvshm_handle h;
    ASSERT_EQ(kvshm_acquire(s.pool.a, k.data(), 0, &h), 0);
    all.push_back(h);
  }
  EXPECT_EQ(kvshm_pin(s.a, all.data(), 5, 0, &lease), -KVSHM_EQUOTA);  // all or none
  EXPECT_COUNTS(s.a, 0u);
  EXPECT_EQ(kvshm_pin(s.a, all.data(), 4, 0, &lease), 0);
  EXPECT_EQ(kvshm_evict(s.a, raw(key_of(5000)), 1), 0);
  EXPECT_EQ(kvshm_release(s.a, lease), 0);
  EXPECT_EQ(kvshm_drop(s.pool.a, all.data(), 8), 0);
}

// At its quota a process can still finish what it began, and clear away.
TEST(Quota, NeverInTheWayOfFinishing) {
  Scene s;
  handles_t h(4);
  auto quiet = sized<kvshm_fill_options>();
  quiet.flags = KVSHM_QUIET;
  const keys_t keys = {s.cached[0], s.cached[1], key_of(700), key_of(701)};
  ASSERT_EQ(kvshm_allocate(s.a, 4, raw(keys), &quiet, h.data(), nullptr, nullptr), 0);
  for (int i = 0; i < 4; i++) write_payload(s.a, h[i].id, keys[i]);
  EXPECT_EQ(kvshm_evict(s.a, raw(s.cached[7]), 1), 1);
  std::uint8_t result;
  EXPECT_EQ(kvshm_register(s.a, &h[0], 1, nullptr, KVSHM_REJECT, &h[0], &result), 1);
  EXPECT_EQ(result, KVSHM_ST_PRESENT);  // in place of mine
  EXPECT_COUNTS(s.a, 4u);
  EXPECT_EQ(kvshm_register(s.a, &h[1], 1, nullptr, KVSHM_ALLOW, &h[1], &result), 1);
  EXPECT_EQ(result, KVSHM_ST_DUPLICATE);  // beside its primary
  EXPECT_COUNTS(s.a, 5u);
  EXPECT_EQ(kvshm_register(s.a, &h[2], 2, nullptr, KVSHM_ALLOW, &h[2], nullptr), 2);
  EXPECT_EQ(kvshm_drop(s.a, h.data(), 4), 0);
  EXPECT_COUNTS(s.a, 0u);
}

TEST(Quota, AnObjectThatIsTooLargeStaysWhole) {
  Scene s;
  const block_key key = key_of(900);
  std::vector<char> bytes(6 * 128, 'o');
  kvshm_object* o = nullptr;
  EXPECT_EQ(kvshm_object_create(s.a, key.data(), bytes.size(), nullptr, &o), -KVSHM_EQUOTA);
  ASSERT_EQ(kvshm_object_create(s.pool.a, key.data(), bytes.size(), nullptr, &o), 0);
  ASSERT_EQ(kvshm_object_write(o, 0, bytes.data(), bytes.size()), 0);
  ASSERT_EQ(kvshm_object_commit(o), 0);
  kvshm_object_close(o);
  EXPECT_EQ(kvshm_object_get(s.a, key.data(), &o), -KVSHM_EQUOTA);
  EXPECT_COUNTS(s.a, 0u);
  ASSERT_EQ(kvshm_object_get(s.pool.a, key.data(), &o), 0);  // it was not taken for a headless one
  kvshm_object_close(o);
}

// Threads at the limit: never more than it, and what they count is what the words say.
TEST(Quota, HoldsBetweenThreads) {
  Scene s;
  std::atomic<bool> over{false};
  auto work = [&](int seed) {  // up to three at a time each, so that all three meet the limit
    kvshm_handle last, h, f;
    bool kept = false;
    for (int i = 0; i < 3000; i++) {
      const bool got = kvshm_acquire(s.a, s.cached[(i * 7 + seed) % 8].data(), 0, &h) == 0;
      const bool filling =
          i % 3 == 0 && kvshm_allocate(s.a, 1, nullptr, nullptr, &f, nullptr, nullptr) == 0;
      if (counted(s.a) > 4) over = true;
      if (i % 64 == 0) std::this_thread::yield();
      if (filling) kvshm_abort(s.a, &f, 1);
      if (kept) drop(s.a, last);
      kept = got;
      last = h;
    }
    if (kept) drop(s.a, last);
  };
  std::thread one(work, 0), two(work, 3), three(work, 5);
  one.join();
  two.join();
  three.join();
  EXPECT_FALSE(over);
  EXPECT_COUNTS(s.a, 0u);
  EXPECT_GT(own_stats(s.a).quota_refused_total, 0u);
}

TEST(Quota, NobodyElseIsBoundAndNothingIsCountedWithoutOne) {
  Scene s;
  const handles_t mine = fill_blocks(s.a, 4);
  const handles_t theirs = fill_blocks(s.pool.a, 20);
  EXPECT_EQ(counted(s.pool.a), 0u);
  EXPECT_EQ(s.a->impl->mine->quota.load(), 4u);  // for whoever looks
  EXPECT_EQ(s.pool.a->impl->mine->quota.load(), 0u);
  EXPECT_EQ(abort_fills(s.pool.a, theirs), 0);
  EXPECT_EQ(abort_fills(s.a, mine), 0);
}
