// SPDX-License-Identifier: Apache-2.0
// Time to live, and priorities for a while: after it a block is a miss and the first to go, or of
// the default priority; a holder keeps what it holds; and its key is free for a new one.
#include <signal.h>
#include <time.h>

#include "capi/call.hpp"
#include "support.hpp"

using namespace kvshm_test;

namespace {

// As if that much time had passed for the block: nobody waits in a test.
void pass(kvshm_arena* a, std::uint32_t id, std::uint64_t ms) {
  auto& cold = a->impl->cold[id];
  cold.expires.fetch_sub(std::uint32_t(ms / 100));
  cold.calms.fetch_sub(std::uint32_t(ms / 100));
}

kvshm_handle make(kvshm_arena* a, const block_key& key, std::uint64_t ttl_ms,
                  std::uint32_t priority = 0, std::uint64_t priority_ms = 0,
                  std::uint8_t* result = nullptr) {
  auto o = sized<kvshm_fill_options>();
  o.ttl_ms = ttl_ms;
  o.priority = priority;
  o.priority_ms = priority_ms;
  kvshm_handle h{};
  EXPECT_EQ(kvshm_allocate(a, 1, raw(key), &o, &h, nullptr, nullptr), 0) << kvshm_last_error();
  write_payload(a, h.id, key);
  EXPECT_EQ(kvshm_register(a, &h, 1, nullptr, KVSHM_ALLOW, &h, result), 1);
  return h;
}

std::int64_t matched(kvshm_arena* a, const block_key& key) {
  std::uint32_t id;
  kvshm_lease lease;
  const std::int64_t n = kvshm_match(a, raw(key), 1, &id, &lease);
  if (n > 0) kvshm_release(a, lease);
  return n;
}

}  // namespace

TEST(Deadlines, AfterItsTimeABlockIsAMiss) {
  Pool pool({.blocks = 16});
  const block_key key = key_of(1);
  kvshm_handle h = make(pool.a, key, 60000), other;
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(matched(pool.a, key), 1);
  EXPECT_EQ(kvshm_acquire(pool.a, key.data(), 0, &other), 0);
  EXPECT_EQ(drop(pool.a, other), 0);
  EXPECT_TRUE(present(pool.a, key));
  const std::uint64_t left = block(pool.a, h.id).ttl_ms;
  EXPECT_TRUE(left > 50000 && left <= 60000) << left;
  pass(pool.a, h.id, 59000);
  EXPECT_EQ(matched(pool.a, key), 1);
  pass(pool.a, h.id, 1000);
  const auto before = own_stats(pool.a);
  EXPECT_EQ(matched(pool.a, key), 0);
  EXPECT_EQ(kvshm_acquire(pool.a, key.data(), 0, &other), -ENOENT);
  EXPECT_EQ(kvshm_upgrade(pool.a, h, 0), -ENOENT);
  EXPECT_FALSE(present(pool.a, key));
  EXPECT_EQ(own_stats(pool.a).hits_total, before.hits_total);
  EXPECT_EQ(block(pool.a, h.id).holders, 0u);  // no look-up has left a hold
  EXPECT_EQ(block(pool.a, h.id).ttl_ms, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Deadlines, ByTheClock) {
  Pool pool({.blocks = 16});
  const block_key key = key_of(1);
  EXPECT_EQ(drop(pool.a, make(pool.a, key, 300)), 0);
  EXPECT_EQ(matched(pool.a, key), 1);
  const std::int64_t start = now_ms();
  while (matched(pool.a, key) == 1 && now_ms() - start < 5000) usleep(5000);
  const std::int64_t took = now_ms() - start;
  EXPECT_TRUE(took >= 150 && took < 1000) << took;
}

TEST(Deadlines, AHolderKeepsIt) {
  Pool pool({.blocks = 16});
  const block_key key = key_of(1);
  kvshm_handle h = make(pool.a, key, 1000);
  pass(pool.a, h.id, 2000);
  EXPECT_TRUE(payload_right(pool.a, h.id, key));
  EXPECT_EQ(matched(pool.a, key), 0);
  EXPECT_EQ(kvshm_upgrade(pool.a, h, 0), 0);  // one more hold of what it holds
  kvshm_arena* b = pool.another();
  EXPECT_EQ(kvshm_upgrade(b, h, 0), -ENOENT);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(own_stats(b).misuse_total, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Deadlines, ItsKeyIsFreeForANewOne) {
  Pool pool({.blocks = 16});
  const block_key key = key_of(1);
  const kvshm_handle old = make(pool.a, key, 1000);
  pass(pool.a, old.id, 2000);
  // Held: it cannot be taken away, and is not said to be there.
  std::uint8_t status = 0, result = 0;
  kvshm_handle h;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key), nullptr, &h, &status, nullptr), 0);
  EXPECT_EQ(status, KVSHM_ST_FULL);
  EXPECT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_REJECT, &h, &result), 1);
  EXPECT_EQ(result, KVSHM_ST_PRIVATE);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(drop(pool.a, old), 0);
  // Announced in its place; and by a quiet fill at register.
  ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(key), nullptr, &h, &status, nullptr), 0);
  EXPECT_EQ(status, KVSHM_ST_ANNOUNCED);
  write_payload(pool.a, h.id, key);
  ASSERT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_REJECT, &h, &result), 1);
  EXPECT_EQ(result, KVSHM_ST_PRIMARY);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(matched(pool.a, key), 1);
  const block_key second = key_of(2);
  const kvshm_handle q = make(pool.a, second, 1000);
  EXPECT_EQ(drop(pool.a, q), 0);
  pass(pool.a, q.id, 2000);
  auto quiet = sized<kvshm_fill_options>();
  quiet.flags = KVSHM_QUIET;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, raw(second), &quiet, &h, nullptr, nullptr), 0);
  ASSERT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_REJECT, &h, &result), 1);
  EXPECT_EQ(result, KVSHM_ST_PRIMARY);
  EXPECT_EQ(block(pool.a, h.id).ttl_ms, KVSHM_FOR_GOOD);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(unfindable(pool.a), "");
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Deadlines, WhatIsOverGoesFirst) {
  Pool pool({.blocks = 16});
  const keys_t keys = keys_of(0, 16);
  std::vector<kvshm_handle> all;
  for (int i = 0; i < 16; i++) {
    // the youngest, of the highest priority, and touched
    all.push_back(make(pool.a, keys[i], i >= 12 ? 1000 : 0, i >= 12 ? (i == 15 ? 100 : 90) : 0));
    EXPECT_EQ(drop(pool.a, all.back()), 0);
    EXPECT_EQ(matched(pool.a, keys[i]), 1);
  }
  for (int i = 12; i < 16; i++) pass(pool.a, all[i].id, 5000);
  const handles_t fills = fill_blocks(pool.a, 4);
  for (int i = 0; i < 12; i++) EXPECT_TRUE(present(pool.a, keys[i])) << i;
  EXPECT_EQ(own_stats(pool.a).evicted_total, 4u);
  EXPECT_EQ(pool.a->impl->sb->pinned.load(), 0u);
  EXPECT_EQ(abort_fills(pool.a, fills), 0);
}

TEST(Deadlines, ObjectsExpireAsAWhole) {
  Pool pool({.blocks = 16});
  const block_key key = key_of(5);
  auto o = sized<kvshm_fill_options>();
  o.ttl_ms = 1000;
  kvshm_object *put = nullptr, *got = nullptr;
  ASSERT_EQ(kvshm_object_create(pool.a, key.data(), 700, &o, &put), 0);
  ASSERT_EQ(kvshm_object_commit(put), 0);
  for (std::uint32_t id = 0; id < 16; id++) pass(pool.a, id, 2000);
  EXPECT_EQ(kvshm_object_get(pool.a, key.data(), &got), -ENOENT);
  EXPECT_EQ(kvshm_object_create(pool.a, key.data(), 700, &o, &got), -KVSHM_EPENDING);  // still held
  kvshm_object_close(put);
  ASSERT_EQ(kvshm_object_create(pool.a, key.data(), 300, &o, &got), 0) << kvshm_last_error();
  ASSERT_EQ(kvshm_object_commit(got), 0);
  kvshm_object_close(got);
  ASSERT_EQ(kvshm_object_get(pool.a, key.data(), &got), 0);
  EXPECT_EQ(kvshm_object_bytes(got), 300u);
  kvshm_object_close(got);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Deadlines, APriorityReturnsToTheDefault) {
  Pool pool({.blocks = 8});
  const keys_t keys = keys_of(0, 8);
  std::vector<kvshm_handle> all;
  for (int i = 0; i < 8; i++) {
    all.push_back(make(pool.a, keys[i], 0,
                       i == 0   ? 90
                       : i == 1 ? 100
                       : i == 2 ? 10
                                : 0,
                       i < 3 ? 60000 : 0));
    EXPECT_EQ(drop(pool.a, all.back()), 0);
  }
  EXPECT_EQ(block(pool.a, all[0].id).priority, 90u);
  EXPECT_LE(block(pool.a, all[0].id).priority_ms, 60000u);
  EXPECT_EQ(block(pool.a, all[3].id).priority_ms, KVSHM_FOR_GOOD);
  handles_t one = fill_blocks(pool.a, 1);
  EXPECT_FALSE(present(pool.a, keys[2]));  // 10 goes before 50
  EXPECT_EQ(abort_fills(pool.a, one), 0);
  for (int i = 0; i < 2; i++) pass(pool.a, all[i].id, 60000);
  EXPECT_EQ(pool.a->impl->sb->pinned.load(), 1u);
  one = fill_blocks(pool.a, 3);
  EXPECT_FALSE(present(pool.a, keys[0]));  // the oldest of equals again
  EXPECT_FALSE(present(pool.a, keys[1]));
  EXPECT_TRUE(present(pool.a, keys[3]));
  EXPECT_EQ(pool.a->impl->sb->pinned.load(), 0u);
  EXPECT_EQ(abort_fills(pool.a, one), 0);
  kvshm_handle h;
  ASSERT_EQ(kvshm_acquire(pool.a, keys[5].data(), 0, &h), 0);
  EXPECT_EQ(kvshm_set_priority_for(pool.a, h, 100, 5000), 0);
  EXPECT_EQ(kvshm_set_priority_for(pool.a, h, 101, 5000), -EINVAL);
  EXPECT_EQ(block(pool.a, h.id).priority, 100u);
  EXPECT_EQ(kvshm_set_priority(pool.a, h, 100), 0);  // for good now
  pass(pool.a, h.id, 60000);
  EXPECT_EQ(block(pool.a, h.id).priority_ms, KVSHM_FOR_GOOD);
  EXPECT_EQ(drop(pool.a, h), 0);
  fill_blocks(pool.a, 7);
  EXPECT_TRUE(present(pool.a, keys[5]));
  EXPECT_EQ(broken(pool.a), "");
}

// The bits that say of a deadline come after it, at every step of an allocation.
TEST(Deadlines, AKillLeavesNoHalfOfOne) {
  Pool pool({.blocks = 16});
  for (const char* at : {"alloc.flags", "alloc.unlink", "alloc.keyed", "priority.until",
                         "priority.set", "priority.was"}) {
    Child child([&](Wire&) {
      kvshm_arena* a = attach(pool.name);
      Steps steps([&](const char* name) {
        if (std::string(name) == at) raise(SIGKILL);
      });
      const kvshm_handle h = make(a, key_of(7), 1000, 90, 1000);
      kvshm_set_priority_for(a, h, 100, 1000);
      return 0;
    });
    EXPECT_EQ(child.wait(), -SIGKILL) << at;
    ASSERT_EQ(kvshm_reap(pool.a, nullptr), 0);
    EXPECT_EQ(broken(pool.a), "") << at;
    EXPECT_EQ(kvshm_clear(pool.a) >= 0, true);
    EXPECT_EQ(pool.a->impl->sb->pinned.load(), 0u) << at;
  }
}

TEST(Deadlines, OptionsOfBeforeTheyGrew) {
  Pool pool({.blocks = 16});
  auto o = sized<kvshm_fill_options>();
  o.size = offsetof(kvshm_fill_options, ttl_ms);
  o.ttl_ms = 1;  // beyond its end: not read
  kvshm_handle h;
  ASSERT_EQ(kvshm_allocate(pool.a, 1, nullptr, &o, &h, nullptr, nullptr), 0);
  EXPECT_EQ(block(pool.a, h.id).ttl_ms, KVSHM_FOR_GOOD);
  o.size--;
  EXPECT_EQ(kvshm_allocate(pool.a, 1, nullptr, &o, &h, nullptr, nullptr), -EINVAL);
}
