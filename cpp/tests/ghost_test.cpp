// SPDX-License-Identifier: Apache-2.0
// The memory of keys that left: who writes into it, what goes first, and that nothing in it matters.
#include "evict/ghost.hpp"

#include <signal.h>

#include <map>

#include "capi/call.hpp"
#include "support.hpp"

using namespace kvshm_test;
using kvshm::Gone;
namespace ghost = kvshm::ghost;

namespace {

kvshm::Arena& inner(kvshm_arena* a) { return *a->impl; }

ghost::Spot spot_of(kvshm_arena* a, const block_key& key) {
  return ghost::spot_of(inner(a), kvshm::Key::load(key.data()));
}

// What is remembered of a key; 0: nothing. Two entries of one key fail the test.
std::uint64_t remembered(kvshm_arena* a, const block_key& key) {
  const ghost::Spot s = spot_of(a, key);
  std::uint64_t found = 0;
  for (unsigned i = 0; i < s.n; i++) {
    const std::uint64_t gone = s.places[i].gone.load();
    if (s.places[i].tag.load() != s.tag || !ghost::why(gone)) continue;
    EXPECT_EQ(found, 0u);
    found = gone;
  }
  return found;
}

unsigned why(kvshm_arena* a, const block_key& key) { return ghost::why(remembered(a, key)); }
constexpr unsigned kEvicted = unsigned(Gone::kEvicted), kRemoved = unsigned(Gone::kRemoved),
                   kClosed = unsigned(Gone::kClosed);

// Keys that share a set, in the order of their numbers.
keys_t of_one_set(kvshm_arena* a, std::size_t n) {
  std::map<kvshm::Ghost*, keys_t> sets;
  for (std::uint64_t i = 0;; i++) {
    keys_t& keys = sets[spot_of(a, key_of(i)).places];
    keys.push_back(key_of(i));
    if (keys.size() == n) return keys;
  }
}

}  // namespace

TEST(Ghost, OfWhatWasEvicted) {
  Pool pool({.blocks = 4});
  const keys_t keys = keys_of(0, 5);
  for (int i = 0; i < 4; i++) make_cached(pool.a, keys[i]);
  for (int i = 0; i < 4; i++) EXPECT_EQ(remembered(pool.a, keys[i]), 0u);
  make_cached(pool.a, keys[4]);  // takes the place of one of them
  int evicted = 0;
  for (int i = 0; i < 4; i++) {
    EXPECT_EQ(why(pool.a, keys[i]), present(pool.a, keys[i]) ? 0 : kEvicted);
    evicted += !present(pool.a, keys[i]);
  }
  EXPECT_EQ(evicted, 1);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Ghost, OfWhatWasRemovedOrClosed) {
  Pool pool({.blocks = 64});
  const keys_t keys = keys_of(0, 4);
  make_cached(pool.a, keys[0]);
  ASSERT_EQ(kvshm_evict(pool.a, raw(keys[0]), 1), 1);
  EXPECT_EQ(why(pool.a, keys[0]), kRemoved);
  make_cached(pool.a, keys[1]);
  ASSERT_EQ(kvshm_clear(pool.a), 1);
  EXPECT_EQ(why(pool.a, keys[1]), kRemoved);
  make_cached(pool.a, keys[2]);
  ASSERT_EQ(kvshm_reset_inactive(pool.a, nullptr, nullptr), 0);
  EXPECT_EQ(why(pool.a, keys[2]), kRemoved);

  const kvshm_handle h = make_held(pool.a, keys[3]);
  ASSERT_EQ(kvshm_set_no_cache(pool.a, h, 1), 0);
  EXPECT_EQ(remembered(pool.a, keys[3]), 0u);
  ASSERT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(why(pool.a, keys[3]), kClosed);
  make_cached(pool.a, keys[3]);  // stored again: the entry is left
  EXPECT_EQ(why(pool.a, keys[3]), kClosed);
  ASSERT_EQ(kvshm_evict(pool.a, raw(keys[3]), 1), 1);
  EXPECT_EQ(why(pool.a, keys[3]), kRemoved);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Ghost, SaysWhenAndHowOftenUsed) {
  Pool pool;
  const block_key key = key_of(1);
  make_cached(pool.a, key);
  for (int i = 0; i < 3; i++) {
    std::uint32_t id;
    kvshm_lease lease;
    ASSERT_EQ(kvshm_match(pool.a, raw(key), 1, &id, &lease), 1);
    ASSERT_EQ(kvshm_release(pool.a, lease), 0);
  }
  inner(pool.a).sb->created_at -= 1000;
  ASSERT_EQ(kvshm_evict(pool.a, raw(key), 1), 1);
  const std::uint64_t gone = remembered(pool.a, key);
  EXPECT_GE(ghost::when(gone), 999u);  // the coarse clock may lag by a tick
  EXPECT_LE(ghost::when(gone), 1060u);
  EXPECT_EQ(ghost::uses(gone), 3u);
  EXPECT_EQ(gone >> 6 & ((1u << 26) - 1), 0u) << "room for later";

  inner(pool.a).sb->created_at +=
      1000000;  // made in the future: damage, or a clock that was set back
  make_cached(pool.a, key);
  ASSERT_EQ(kvshm_evict(pool.a, raw(key), 1), 1);
  EXPECT_EQ(ghost::when(remembered(pool.a, key)), 0u);
}

// Nobody could have found them.
TEST(Ghost, KeylessOnesDuplicatesAndPrivateOnesLeaveNothing) {
  Pool pool;
  const block_key key = key_of(1);
  const kvshm_handle first = make_held(pool.a, key);
  auto quiet = sized<kvshm_fill_options>();
  quiet.flags = KVSHM_QUIET;
  kvshm_handle twice;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key), &quiet, &twice, nullptr, nullptr), 0);
  write_payload(pool.a, twice.id, key);
  ASSERT_EQ(kvshm_register(pool.a, &twice, 1, nullptr, KVSHM_ALLOW, &twice, nullptr), 1);
  ASSERT_NE(twice.id, first.id);
  ASSERT_EQ(drop(pool.a, twice), 0);
  EXPECT_EQ(remembered(pool.a, key), 0u);
  ASSERT_EQ(abort_fills(pool.a, fill_blocks(pool.a, 4)), 0);
  kvshm_handle left;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key_of(2)), nullptr, &left, nullptr, nullptr), 0);
  ASSERT_EQ(kvshm_abort(pool.a, &left, 1), 0);
  EXPECT_EQ(remembered(pool.a, key_of(2)), 0u) << "a fill that was given up was never there";
  const kvshm::Geometry& g = inner(pool.a).geometry;
  for (std::uint64_t i = 0; i < kvshm::ghost_places(g.blocks); i++)
    EXPECT_EQ(inner(pool.a).ghosts[i].gone.load(), 0u) << i;
  ASSERT_EQ(drop(pool.a, first), 0);
  ASSERT_EQ(kvshm_evict(pool.a, raw(key), 1), 1);
  EXPECT_EQ(why(pool.a, key), kRemoved);
}

TEST(Ghost, OfASetTheOldestGoes) {
  Pool pool({.blocks = 256});
  const keys_t keys = of_one_set(pool.a, 7);
  const ghost::Spot s = spot_of(pool.a, keys[0]);
  ASSERT_EQ(s.n, 4u);
  auto leave = [&](const block_key& key) {
    make_cached(pool.a, key);
    ASSERT_EQ(kvshm_evict(pool.a, raw(key), 1), 1);
  };
  auto place_of = [&](const block_key& key) {
    for (unsigned i = 0; i < s.n; i++)
      if (s.places[i].tag.load() == spot_of(pool.a, key).tag) return &s.places[i];
    return static_cast<kvshm::Ghost*>(nullptr);
  };
  inner(pool.a).sb->created_at -= 1000;
  for (int i = 0; i < 4; i++) leave(keys[i]);
  for (int i = 0; i < 4; i++) ASSERT_EQ(why(pool.a, keys[i]), kRemoved) << i;
  const std::uint32_t ages[] = {900, 800, 950, 100};
  for (int i = 0; i < 4; i++)
    place_of(keys[i])->gone.store(ghost::make(Gone::kEvicted, 0, 1000 - ages[i]));
  leave(keys[1]);  // the same key: in its place, nobody else goes
  for (int i = 0; i < 4; i++) EXPECT_NE(remembered(pool.a, keys[i]), 0u) << i;
  EXPECT_EQ(why(pool.a, keys[1]), kRemoved);
  leave(keys[4]);
  EXPECT_EQ(remembered(pool.a, keys[2]), 0u);
  leave(keys[5]);
  EXPECT_EQ(remembered(pool.a, keys[0]), 0u);
  // From the future: damage, or a clock that was set back. It does not stay for ever.
  place_of(keys[4])->gone.store(ghost::make(Gone::kEvicted, 0, 0xffff0000));
  leave(keys[6]);
  EXPECT_EQ(remembered(pool.a, keys[4]), 0u);
  for (int i : {1, 3, 5, 6}) EXPECT_NE(remembered(pool.a, keys[i]), 0u) << i;
}

TEST(Ghost, StaysInItsSection) {
  for (std::uint64_t blocks : {1, 4, 16, 17, 31, 63}) {
    Pool pool({.blocks = blocks});
    const kvshm::Geometry& g = inner(pool.a).geometry;
    const auto* end = reinterpret_cast<std::uint64_t*>(inner(pool.a).base + g.uses_off);
    const std::uint64_t places = kvshm::ghost_places(blocks);
    for (std::uint64_t i = 0; i < 80 + 8 * blocks; i++) {
      make_cached(pool.a, key_of(i));
      ASSERT_EQ(kvshm_evict(pool.a, raw(key_of(i)), 1), 1);
      ASSERT_EQ(why(pool.a, key_of(i)), kRemoved) << "the last one is always remembered";
    }
    for (auto* w = reinterpret_cast<std::uint64_t*>(inner(pool.a).ghosts + places); w < end; w++)
      ASSERT_EQ(*w, 0u) << blocks;
    std::uint64_t used = 0;
    for (std::uint64_t i = 0; i < places; i++) used += inner(pool.a).ghosts[i].gone.load() != 0;
    EXPECT_EQ(used, places) << "so many keys leave no place empty";
  }
}

TEST(Ghost, IsWrittenByEveryProcess) {
  Pool pool({.blocks = 8});
  make_cached(pool.a, key_of(1));
  Child child([&](Wire&) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a && kvshm_evict(a, raw(key_of(1)), 1) == 1);
    make_cached(a, key_of(2));
    return 0;
  });
  ASSERT_EQ(child.wait(), 0);
  EXPECT_EQ(why(pool.a, key_of(1)), kRemoved);

  // One held by a dead process alone, closed by who reaps it.
  Child holder([&](Wire& w) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    const kvshm_handle h = make_held(a, key_of(3));
    CHILD_CHECK(kvshm_set_no_cache(a, h, 1) == 0);
    w.tell();
    w.listen();
    return 1;
  });
  ASSERT_NE(holder.listen(), 0);
  holder.kill();
  EXPECT_EQ(remembered(pool.a, key_of(3)), 0u);
  kvshm_reap_report report = sized<kvshm_reap_report>();
  ASSERT_GE(kvshm_reap(pool.a, &report), 0);
  EXPECT_EQ(why(pool.a, key_of(3)), kClosed);
  EXPECT_EQ(broken(pool.a), "");
}

// Killed between the halves: the memory tells another key's end, and that is all.
TEST(Ghost, ATornPairCostsNothingElse) {
  Pool pool({.blocks = 1});
  make_cached(pool.a, key_of(1));
  ASSERT_EQ(kvshm_evict(pool.a, raw(key_of(1)), 1), 1);
  // All places alike, so that the next one to go is the first of its order.
  for (int i = 0; i < 4; i++) {
    kvshm::Ghost& g = inner(pool.a).ghosts[i];
    g.tag.store(spot_of(pool.a, key_of(1)).tag + (i ? i : 0));
    g.gone.store(ghost::make(Gone::kEvicted, 0, 5));
  }
  make_cached(pool.a, key_of(2));
  Child child([&](Wire&) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    Steps steps([](const char* name) {
      if (std::string(name) == "ghost.half") raise(SIGKILL);
    });
    kvshm_evict(a, raw(key_of(2)), 1);
    return 1;
  });
  ASSERT_EQ(child.wait(), -SIGKILL);
  EXPECT_EQ(remembered(pool.a, key_of(2)), ghost::make(Gone::kEvicted, 0, 5)) << "not torn";
  kvshm_reap_report report = sized<kvshm_reap_report>();
  ASSERT_GE(kvshm_reap(pool.a, &report), 0);
  EXPECT_FALSE(present(pool.a, key_of(2)));
  EXPECT_EQ(broken(pool.a), "");
  make_cached(pool.a, key_of(2));
  EXPECT_TRUE(present(pool.a, key_of(2)));
}

TEST(Ghost, DamageInItNeverMatters) {
  Pool pool({.blocks = 128});
  auto* words = reinterpret_cast<std::uint64_t*>(inner(pool.a).ghosts);
  std::uint64_t x = 88172645463325252;
  for (int how = 0; how < 20; how++) {
    for (std::uint64_t i = 0; i < 64; i++) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      words[i] = how == 0 ? ~std::uint64_t{0} : x;
    }
    // A set of which every place says that it is the key's own.
    const ghost::Spot s = spot_of(pool.a, key_of(0));
    for (unsigned i = 0; i < s.n; i++) s.places[i].tag.store(s.tag);
    for (std::uint64_t n = 0; n < 200; n++) {
      make_cached(pool.a, key_of(n));
      ASSERT_TRUE(present(pool.a, key_of(n)));
    }
    ASSERT_EQ(wrong_payloads(pool.a), "");
    ASSERT_EQ(broken(pool.a), "");
    ASSERT_EQ(unfindable(pool.a), "");
    ASSERT_EQ(kvshm_evict(pool.a, raw(key_of(199)), 1), 1);
    EXPECT_EQ(why(pool.a, key_of(199)), kRemoved) << how;
    ASSERT_EQ(kvshm_clear(pool.a), 127);
  }
}
