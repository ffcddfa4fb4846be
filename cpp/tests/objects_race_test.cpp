// SPDX-License-Identifier: Apache-2.0
// Objects are there as a whole or not at all: under eviction, with rivals, and when somebody dies.
#include <signal.h>
#include <unistd.h>

#include <random>
#include <set>
#include <string>

#include "arena/step.hpp"
#include "objects_support.hpp"

using namespace kvshm_test;

namespace {

// In a child: death at the k-th step from here on.
void die_at(int k) {
  static int left;
  left = k;
  kvshm::set_step_hook(
      [](const char*, void*) {
        if (--left == 0) {
          kill(getpid(), SIGKILL);
          for (;;) pause();
        }
      },
      nullptr);
}

}  // namespace

// Parts that lost their head must not become part of the next object of its key.
TEST(ObjectsWhole, PartsOfAnEarlierOneAreNotMixedIn) {
  Pool pool({.blocks = 16, .block_bytes = kBlock});
  ASSERT_EQ(put(pool.a, content(5 * kBlock, 1)), 0);
  ASSERT_EQ(kvshm_evict(pool.a, raw(kKey), 1), 1);  // the head alone
  EXPECT_FALSE(get(pool.a));
  EXPECT_EQ(stats(pool.a).blocks_inactive, 4u);
  ASSERT_EQ(put(pool.a, content(6 * kBlock - 7, 2)), 0);
  EXPECT_EQ(read_all(get(pool.a)), content(6 * kBlock - 7, 2));
  EXPECT_EQ(stats(pool.a).blocks_inactive, 6u);  // the old parts are gone
  EXPECT_EQ(broken(pool.a), "");
}

// The same while somebody holds such a part: the put waits its turn rather than take it.
TEST(ObjectsWhole, AHeldPartOfAnEarlierOneHoldsThePutBack) {
  Pool pool({.blocks = 16, .block_bytes = kBlock});
  ASSERT_EQ(put(pool.a, content(3 * kBlock, 1)), 0);
  kvshm_handle h;
  std::uint8_t part[16];
  Object o = get(pool.a);
  for (std::uint32_t id = 0; id < 16; id++) {
    const kvshm_block_info b = block(pool.a, id);
    if (b.state == KVSHM_READY && std::memcmp(b.key, kKey.data(), 16) != 0)
      std::memcpy(part, b.key, 16);
  }
  o.reset();
  ASSERT_EQ(kvshm_acquire(pool.a, part, 0, &h), 0);
  ASSERT_EQ(kvshm_evict(pool.a, raw(kKey), 1), 1);
  Object again;
  EXPECT_EQ(create(pool.a, 3 * kBlock, &again), -KVSHM_EPENDING);
  EXPECT_EQ(stats(pool.a).blocks_filling, 0u);
  EXPECT_EQ(broken(pool.a), "");
  ASSERT_EQ(drop(pool.a, h), 0);
  ASSERT_EQ(put(pool.a, content(3 * kBlock, 2)), 0);
  EXPECT_EQ(read_all(get(pool.a)), content(3 * kBlock, 2));
}

// A head whose parts are gone is no object, and does not keep a new one out.
TEST(ObjectsWhole, AHeadAloneIsNotThere) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  ASSERT_EQ(put(pool.a, content(3 * kBlock, 1)), 0);
  keys_t parts;
  for (std::uint32_t id = 0; id < 8; id++) {
    const kvshm_block_info b = block(pool.a, id);
    block_key k;
    std::memcpy(k.data(), b.key, 16);
    if (b.state == KVSHM_READY && k != kKey) parts.push_back(k);
  }
  ASSERT_EQ(parts.size(), 2u);
  ASSERT_EQ(kvshm_evict(pool.a, raw(parts[0]), 1), 1);
  EXPECT_FALSE(get(pool.a));
  EXPECT_EQ(stats(pool.a).blocks_held, 0u);
  ASSERT_EQ(put(pool.a, content(4 * kBlock, 2)), 0);
  EXPECT_EQ(read_all(get(pool.a)), content(4 * kBlock, 2));
  EXPECT_EQ(broken(pool.a), "");
}

// Eviction takes the head first: while the head is there, so is the rest.
TEST(ObjectsWhole, EvictionTakesTheHeadFirst) {
  for (bool head_of_older : {true, false}) {
    Pool pool({.blocks = 16, .block_bytes = kBlock});
    ASSERT_EQ(put(pool.a, content(8 * kBlock, 1), key_of(11)), 0);
    ASSERT_EQ(put(pool.a, content(8 * kBlock, 2), key_of(12)), 0);
    const block_key old = key_of(head_of_older ? 11 : 12), young = key_of(head_of_older ? 12 : 11);
    get(pool.a, old);
    get(pool.a, young);
    auto ev = sized<kvshm_evicted>();
    keys_t gone(16);
    ev.keys = raw(gone);
    ev.cap = 16;
    for (int i = 0; i < 4; i++) {  // one block at a time
      kvshm_handle h;
      ASSERT_EQ(kvshm_allocate(pool.a, 1, nullptr, nullptr, &h, nullptr, &ev), 0);
      ASSERT_EQ(ev.count, 1u);
      if (i == 0) {
        EXPECT_TRUE(gone[0] == old) << "the head of the older one goes first";
      } else {
        EXPECT_FALSE(gone[0] == young) << "not before the older one is gone";
      }
      EXPECT_FALSE(present(pool.a, old));
    }
    EXPECT_FALSE(get(pool.a, old));
    EXPECT_EQ(read_all(get(pool.a, young)), content(8 * kBlock, head_of_older ? 2 : 1));
  }
}

// Whatever was used last: the links decide, not the stamps.
TEST(ObjectsWhole, AYoungHeadGoesBeforeItsOldParts) {
  Pool pool({.blocks = 8, .block_bytes = kBlock});
  ASSERT_EQ(put(pool.a, content(8 * kBlock)), 0);
  kvshm_handle h;
  ASSERT_EQ(kvshm_acquire(pool.a, kKey.data(), 0, &h), 0);
  ASSERT_EQ(drop(pool.a, h), 0);
  auto ev = sized<kvshm_evicted>();
  keys_t gone(1);
  ev.keys = raw(gone);
  ev.cap = 1;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, nullptr, nullptr, &h, nullptr, &ev), 0);
  EXPECT_TRUE(ev.count == 1 && gone[0] == kKey);
}

// Putters and getters on too small an arena: a get is right and whole, or a miss.
TEST(ObjectsWhole, UnderPressureAGetIsAllOrNothing) {
  constexpr unsigned kKeys = 6, kWorkers = 3, kRounds = 1500;
  Pool pool({.blocks = 24, .block_bytes = kBlock});
  std::vector<Child> children;
  for (unsigned w = 0; w < kWorkers; w++)
    children.emplace_back([&, w](Wire&) {
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a);
      std::mt19937 rng(w + 7);
      std::uint32_t hits = 0, misses = 0;
      for (unsigned i = 0; i < kRounds; i++) {
        const unsigned k = rng() % kKeys;
        const std::size_t n = (2 + k) * kBlock - 3 * k;
        kvshm_object* o = nullptr;
        int rc = kvshm_object_get(a, key_of(k).data(), &o);
        CHILD_CHECK(rc == 0 || rc == -ENOENT);
        if (rc == 0) {
          CHILD_CHECK(kvshm_object_bytes(o) == n);
          bytes_t b(n);
          CHILD_CHECK(kvshm_object_read(o, 0, b.data(), n) == 0);
          bool whole = false;  // all of it by one of the putters
          for (unsigned v = 0; v < kWorkers; v++) whole |= b == content(n, v);
          CHILD_CHECK(whole);
          kvshm_object_close(o);
          hits++;
          if (rng() % 8 == 0) kvshm_evict(a, raw(key_of(k)), 1);
          continue;
        }
        misses++;
        rc = kvshm_object_create(a, key_of(k).data(), n, nullptr, &o);
        if (rc == -EEXIST || rc == -KVSHM_EPENDING || rc == -KVSHM_ENOSPACE) continue;
        CHILD_CHECK(rc == 0);
        CHILD_CHECK(kvshm_object_write(o, 0, content(n, w).data(), n) == 0);
        CHILD_CHECK(rng() % 5 == 0 || kvshm_object_commit(o) == 0);
        kvshm_object_close(o);
      }
      CHILD_CHECK(hits > 20 && misses > 20);
      return 0;
    });
  for (auto& c : children) EXPECT_EQ(c.wait(), 0);
  EXPECT_EQ(kvshm_reap(pool.a, nullptr), 0);
  EXPECT_EQ(broken(pool.a), "");
  EXPECT_EQ(available(pool.a), 24u);
}

// Two processes put the same object at the same moment: one puts it, the other is told.
TEST(ObjectsWhole, PutByTwoProcessesAtOnce) {
  constexpr int kRounds = 300;
  Pool pool({.blocks = 4096, .block_bytes = kBlock});
  std::vector<Child> children;
  for (unsigned w = 0; w < 2; w++)
    children.emplace_back([&, w](Wire& parent) {
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a);
      for (unsigned i = 0; i < kRounds; i++) {
        CHILD_CHECK(parent.listen());
        const std::size_t n = 6 * kBlock + 1;
        kvshm_object* o = nullptr;
        const int rc = kvshm_object_create(a, key_of(i).data(), n, nullptr, &o);
        CHILD_CHECK(rc == 0 || rc == -KVSHM_EPENDING || rc == -EEXIST);
        if (rc == 0) {
          CHILD_CHECK(kvshm_object_write(o, 0, content(n, 2 * i + w).data(), n) == 0);
          CHILD_CHECK(kvshm_object_commit(o) == 0);
          kvshm_object_close(o);
        }
        parent.tell(rc == 0 ? 'p' : 'n');
      }
      return 0;
    });
  int put_by[2] = {0, 0};
  for (unsigned i = 0; i < kRounds; i++) {
    for (auto& c : children) c.tell();
    char said[2];
    for (int w = 0; w < 2; w++) said[w] = children[std::size_t(w)].listen();
    ASSERT_TRUE(said[0] && said[1]);
    ASSERT_NE(said[0] == 'p', said[1] == 'p') << "round " << i << ": both or neither";
    const unsigned winner = said[1] == 'p';
    put_by[winner]++;
    ASSERT_EQ(read_all(get(pool.a, key_of(i))), content(6 * kBlock + 1, 2 * i + winner));
  }
  for (auto& c : children) EXPECT_EQ(c.wait(), 0);
  EXPECT_EQ(broken(pool.a), "");
}

// The same with every interleaving of the second putter's call into the first one's.
TEST(ObjectsWhole, PutByTwoAtOnceAtEveryStep) {
  for (int k = 1;; k++) {
    Pool pool({.blocks = 16, .block_bytes = kBlock});
    kvshm_arena* other = pool.another();
    const bytes_t first = content(3 * kBlock, 1), second = content(3 * kBlock + 9, 2);
    int step = 0, theirs = -1, mine;
    {
      Steps steps([&](const char*) {
        if (++step == k) theirs = put(other, second);
      });
      mine = put(pool.a, first);
    }
    if (step < k) {
      EXPECT_GT(k, 20) << "too few steps to prove anything";
      break;
    }
    const Object o = get(pool.a);
    if (mine == 0) {  // -EEXIST: the second one fell into the gap before my commit's end
      ASSERT_TRUE(theirs == -KVSHM_EPENDING || theirs == -EEXIST) << k << ": " << theirs;
    } else {
      ASSERT_TRUE(mine == -KVSHM_EPENDING || mine == -EEXIST) << k << ": " << mine;
      ASSERT_EQ(theirs, 0) << k << ": neither";
    }
    ASSERT_TRUE(o) << k;
    ASSERT_EQ(read_all(o), mine == 0 ? first : second) << k;
    ASSERT_EQ(broken(pool.a), "") << k;
    ASSERT_EQ(stats(pool.a).blocks_filling, 0u) << k;
  }
}

// A put that is given up keeps the key until nothing of it is left: who is told to wait finds the
// fill to wait for.
TEST(ObjectsWhole, GivenUpItsHeadGoesLast) {
  int pending = 0, step = 0, k = 1;
  // While the head itself is closed: its word says so before its entry goes.
  const std::set<std::string> closing{"leave.closing", "close.erase", "erase.entry"};
  for (; k <= step + 1; k++) {
    Pool pool({.blocks = 16, .block_bytes = kBlock});
    kvshm_arena* other = pool.another();
    Object o;
    ASSERT_EQ(create(pool.a, 4 * kBlock, &o), 0);
    step = 0;
    int theirs = 0, acquired = 0;
    std::string at;
    {
      Steps steps([&](const char* name) {
        if (++step != k) return;
        at = name;
        theirs = put(other, content(5 * kBlock, 2));
        kvshm_handle h;
        acquired = kvshm_acquire(other, kKey.data(), 0, &h);
      });
      o.reset();
    }
    if (step < k) break;
    ASSERT_TRUE(theirs == 0 || theirs == -KVSHM_EPENDING) << k << ": " << theirs;
    pending += theirs != 0;
    if (theirs && !closing.count(at)) {
      ASSERT_EQ(acquired, -KVSHM_EPENDING) << at;
    }
    ASSERT_EQ(broken(pool.a), "") << k;
  }
  EXPECT_GT(pending, 10);
}

// The putter dies at every step of create, write, commit and close.
TEST(ObjectsWhole, APutterThatDiesLeavesAllOrNothing) {
  int whole = 0, nothing = 0;
  for (int k = 1;; k++) {
    ASSERT_LT(k, 400);
    const std::string where = "step " + std::to_string(k);
    Pool pool({.blocks = 8, .block_bytes = kBlock});
    const bytes_t bytes = content(4 * kBlock + 11, 1);
    make_cached(pool.a, key_of(50));  // it needs a victim, too
    ASSERT_EQ(put(pool.a, content(3 * kBlock, 3), key_of(51)), 0);
    Child child([&](Wire&) {
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a);
      die_at(k);
      CHILD_CHECK(put(a, bytes) == 0);
      return 0;
    });
    const int end = child.wait();
    ASSERT_TRUE(end == 0 || end == -SIGKILL) << where << ": " << end;
    const bool head = present(pool.a, kKey);
    Object seen = get(pool.a);  // before anybody reaped
    const bool before = bool(seen);
    ASSERT_EQ(before, head) << where << ": the head is there, and not all of the rest";
    if (seen) {
      ASSERT_EQ(read_all(seen), bytes) << where;
    }
    seen.reset();
    ASSERT_EQ(kvshm_reap(pool.a, nullptr), 0);
    ASSERT_EQ(broken(pool.a), "") << where;
    ASSERT_EQ(available(pool.a), 8u) << where;
    seen = get(pool.a);
    ASSERT_EQ(bool(seen), before) << where;
    (seen ? whole : nothing)++;
    seen.reset();
    Object neighbour = get(pool.a, key_of(51));
    if (neighbour) {
      ASSERT_EQ(read_all(neighbour), content(3 * kBlock, 3)) << where;
    }
    neighbour.reset();
    // Another one, of other bytes, can be put at once where there is none.
    if (!before) {
      ASSERT_EQ(put(pool.a, content(5 * kBlock, 2)), 0) << where << ": " << kvshm_last_error();
      ASSERT_EQ(read_all(get(pool.a)), content(5 * kBlock, 2)) << where;
    }
    ASSERT_EQ(broken(pool.a), "") << where;
    if (end == 0) break;
  }
  EXPECT_GT(nothing, 25);
  EXPECT_GT(whole, 3);
}

// A reader dies at every step of get and close: its holds come back.
TEST(ObjectsWhole, AGetterThatDiesHoldsNothing) {
  for (int k = 1;; k++) {
    ASSERT_LT(k, 100);
    Pool pool({.blocks = 8, .block_bytes = kBlock});
    ASSERT_EQ(put(pool.a, content(4 * kBlock, 1)), 0);
    Child child([&](Wire&) {
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a);
      die_at(k);
      kvshm_object* o = nullptr;
      CHILD_CHECK(kvshm_object_get(a, kKey.data(), &o) == 0);
      kvshm_object_close(o);
      return 0;
    });
    const int end = child.wait();
    ASSERT_TRUE(end == 0 || end == -SIGKILL) << k << ": " << end;
    ASSERT_EQ(kvshm_reap(pool.a, nullptr), 0);
    ASSERT_EQ(stats(pool.a).blocks_inactive, 4u) << k;
    ASSERT_EQ(read_all(get(pool.a)), content(4 * kBlock, 1)) << k;
    ASSERT_EQ(broken(pool.a), "") << k;
    if (end == 0) {
      EXPECT_GT(k, 4);
      break;
    }
  }
}
