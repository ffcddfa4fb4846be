// SPDX-License-Identifier: Apache-2.0
// Fills with slices and members: join, begin, arrive, publish, leave; who holds what afterwards.
#include <cerrno>
#include <cstring>
#include <thread>

#include "support.hpp"

using namespace kvshm_test;

namespace {

kvshm_handle start(kvshm_arena* a, const block_key& key, std::uint32_t parts,
                   std::uint32_t flags = 0) {
  auto o = sized<kvshm_fill_options>();
  o.parts = parts;
  o.flags = flags;
  kvshm_handle h = {0, KVSHM_NONE, 0};
  EXPECT_EQ(kvshm_allocate(a, 1, raw(key), &o, &h, nullptr, nullptr), 0) << kvshm_last_error();
  return h;
}

int slice(kvshm_arena* a, kvshm_handle h, std::uint32_t part) {
  const int rc = kvshm_fill_begin(a, h, part);
  return rc ? rc : kvshm_fill_arrive(a, h, part);
}

}  // namespace

TEST(SharedFill, AMemberPublishesWhenAllSlicesArrived) {
  Pool pool;
  kvshm_arena* b = pool.another();
  const block_key key = key_of(1);
  const kvshm_handle h = start(pool.a, key, 2);
  write_payload(pool.a, h.id, key);
  ASSERT_EQ(kvshm_fill_join(b, h), 0);
  EXPECT_EQ(kvshm_fill_arrive(pool.a, h, 0), -KVSHM_EPART);  // not begun
  EXPECT_EQ(slice(pool.a, h, 0), 0);
  EXPECT_EQ(kvshm_fill_begin(b, h, 0), -KVSHM_EPART);  // begun once in a life
  EXPECT_EQ(kvshm_fill_begin(b, h, 2), -EINVAL);
  EXPECT_EQ(kvshm_publish(b, h), -KVSHM_EPART);
  std::int64_t n = kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr);
  EXPECT_EQ(n, -KVSHM_EPART);
  EXPECT_EQ(slice(b, h, 1), 0);
  EXPECT_EQ(kvshm_publish(b, h), 0);
  EXPECT_EQ(kvshm_publish(pool.a, h), 0);  // another member was faster
  EXPECT_EQ(kvshm_publish(pool.a, h), 0);
  EXPECT_EQ(stats(pool.a).registered_total, 1u);
  EXPECT_EQ(block(pool.a, h.id).own_holds, 1u);
  EXPECT_EQ(block(b, h.id).own_holds, 1u);
  EXPECT_EQ(kvshm_fill_join(b, h), -ENOENT);  // over
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(stats(pool.a).blocks_held, 1u);
  EXPECT_EQ(drop(b, h), 0);
  EXPECT_TRUE(present(pool.a, key));
  EXPECT_EQ(broken(pool.a), "");
}

TEST(SharedFill, AnUnannouncedFillIsPublishedByItsAllocator) {
  Pool pool;
  kvshm_arena* b = pool.another();
  const block_key key = key_of(1);
  const kvshm_handle h = start(pool.a, key, 1, KVSHM_QUIET);
  ASSERT_EQ(kvshm_fill_join(b, h), 0);
  EXPECT_EQ(slice(b, h, 0), 0);
  EXPECT_EQ(kvshm_publish(b, h), -KVSHM_ESTATE);
  EXPECT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr), 1);
  EXPECT_EQ(kvshm_publish(b, h), 0);
  EXPECT_EQ(drop(b, h), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(SharedFill, LeavingIsCountedPerMember) {
  Pool pool;
  kvshm_arena* b = pool.another();
  const block_key key = key_of(1);
  const kvshm_handle h = start(pool.a, key, 2);
  ASSERT_EQ(kvshm_fill_join(b, h), 0);
  ASSERT_EQ(kvshm_fill_join(b, h), 0);  // two threads of it
  EXPECT_EQ(kvshm_abort(pool.a, &h, 1), 0);
  EXPECT_EQ(kvshm_abort(pool.a, &h, 1), -KVSHM_ENOTMINE);
  EXPECT_EQ(block(b, h.id).state, unsigned(KVSHM_FILLING));
  EXPECT_EQ(kvshm_abort(b, &h, 1), 0);
  EXPECT_EQ(block(b, h.id).state, unsigned(KVSHM_FILLING));
  EXPECT_EQ(drop(b, h), -KVSHM_ESTATE);  // a fill is left, not dropped
  EXPECT_EQ(kvshm_abort(b, &h, 1), 0);
  EXPECT_EQ(block(b, h.id).state, unsigned(KVSHM_FREE));
  EXPECT_FALSE(present(b, key));
  EXPECT_EQ(stats(pool.a).blocks_free, 16u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(SharedFill, AHandleOfAnotherLifeDoesNotJoin) {
  Pool pool({.blocks = 1});
  kvshm_arena* b = pool.another();
  const kvshm_handle old = start(pool.a, key_of(1), 1);
  EXPECT_EQ(kvshm_abort(pool.a, &old, 1), 0);
  const kvshm_handle h = start(pool.a, key_of(1), 1);
  EXPECT_EQ(h.id, old.id);
  EXPECT_EQ(kvshm_fill_join(b, old), -ENOENT);
  EXPECT_EQ(block(b, h.id).holders, block(pool.a, h.id).holders);
  EXPECT_EQ(block(b, h.id).own_holds, 0u);
  EXPECT_EQ(kvshm_fill_begin(pool.a, old, 0), -KVSHM_ENOTMINE);
  EXPECT_EQ(kvshm_abort(pool.a, &h, 1), 0);
  EXPECT_EQ(broken(pool.a), "");
}

// A dead rank's slice never comes: nobody can publish, and the last to leave closes the block.
TEST(SharedFill, ADeadRanksSliceMakesTheFillUnpublishable) {
  Pool pool;
  const block_key key = key_of(1);
  const kvshm_handle h = start(pool.a, key, 2);
  Child rank([&](Wire& parent) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    CHILD_CHECK(kvshm_fill_join(a, h) == 0);
    CHILD_CHECK(kvshm_fill_begin(a, h, 1) == 0);
    parent.tell();
    parent.listen();
    return 0;
  });
  ASSERT_TRUE(rank.listen());
  EXPECT_EQ(slice(pool.a, h, 0), 0);
  rank.kill();
  EXPECT_EQ(kvshm_reap(pool.a, nullptr), 0);
  EXPECT_EQ(block(pool.a, h.id).state, unsigned(KVSHM_FILLING));
  EXPECT_EQ(kvshm_fill_begin(pool.a, h, 1), -KVSHM_EPART);  // a restarted rank may not write it
  EXPECT_EQ(kvshm_publish(pool.a, h), -KVSHM_EPART);
  EXPECT_EQ(kvshm_abort(pool.a, &h, 1), 0);
  EXPECT_FALSE(present(pool.a, key));
  EXPECT_EQ(stats(pool.a).blocks_free, 16u);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(SharedFill, TheAllocatorDiesAndAMemberFinishes) {
  Pool pool;
  const block_key key = key_of(1);
  kvshm_handle h;
  Child allocator([&](Wire& parent) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a);
    const kvshm_handle mine = start(a, key, 2);
    write_payload(a, mine.id, key);
    CHILD_CHECK(slice(a, mine, 0) == 0);
    CHILD_CHECK(parent.send(&mine, sizeof mine));
    parent.listen();
    return 0;
  });
  ASSERT_TRUE(allocator.wire().receive(&h, sizeof h));
  ASSERT_EQ(kvshm_fill_join(pool.a, h), 0);
  allocator.kill();
  EXPECT_EQ(kvshm_reap(pool.a, nullptr), 0);
  EXPECT_EQ(slice(pool.a, h, 1), 0);
  EXPECT_EQ(kvshm_publish(pool.a, h), 0);
  EXPECT_TRUE(present(pool.a, key));
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_TRUE(present(pool.a, key));
  EXPECT_EQ(wrong_payloads(pool.a), "");
  EXPECT_EQ(broken(pool.a), "");
}

// A fill that becomes a duplicate while another process is its member: that member has no hold of
// the primary, so giving back its one hold must not take one that it has for another reason.
TEST(SharedFill, AMembersDropOfADuplicateTakesNothingElse) {
  Pool pool({.blocks = 3});
  kvshm_arena* b = pool.another();
  const block_key key = key_of(1);
  const kvshm_handle primary = make_held(pool.a, key);
  const kvshm_handle h = start(pool.a, key, 1, KVSHM_QUIET);
  ASSERT_EQ(kvshm_fill_join(b, h), 0);
  kvshm_handle reading;
  ASSERT_EQ(kvshm_acquire(b, key.data(), 0, &reading), 0);  // b reads the primary
  EXPECT_EQ(reading.id, primary.id);
  write_payload(pool.a, h.id, key);
  std::uint8_t result = 0;
  ASSERT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, nullptr, &result), 1);
  EXPECT_EQ(result, KVSHM_ST_DUPLICATE);
  EXPECT_EQ(broken(pool.a), "");
  EXPECT_EQ(kvshm_publish(b, h), 0);
  EXPECT_EQ(drop(b, h), 0);
  EXPECT_EQ(block(b, primary.id).own_holds, 1u) << "the reader's hold was given back";
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(drop(pool.a, primary), 0);
  // b still reads: its block cannot be taken.
  EXPECT_EQ(kvshm_evict(pool.a, raw(key), 1), 0);
  EXPECT_TRUE(payload_right(b, reading.id, key));
  EXPECT_EQ(drop(b, reading), 0);
  EXPECT_EQ(broken(pool.a), "");
}

// The same within one process: two memberships, one of them registers.
TEST(SharedFill, TwoMembershipsOfOneProcessAndADuplicate) {
  Pool pool({.blocks = 3});
  const block_key key = key_of(1);
  const kvshm_handle primary = make_held(pool.a, key);
  const kvshm_handle h = start(pool.a, key, 1, KVSHM_QUIET);
  ASSERT_EQ(kvshm_fill_join(pool.a, h), 0);
  write_payload(pool.a, h.id, key);
  ASSERT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr), 1);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(block(pool.a, primary.id).own_holds, 1u);
  EXPECT_EQ(drop(pool.a, primary), 0);
  EXPECT_EQ(broken(pool.a), "");
}

// A member that comes between the allocator's choice (duplicate) and its publish.
TEST(SharedFill, AMemberJoinsWhileTheFillBecomesADuplicate) {
  Pool pool({.blocks = 3});
  kvshm_arena* b = pool.another();
  const block_key key = key_of(1);
  const kvshm_handle primary = make_held(pool.a, key);
  kvshm_handle reading;
  ASSERT_EQ(kvshm_acquire(b, key.data(), 0, &reading), 0);
  const kvshm_handle h = start(pool.a, key, 1, KVSHM_QUIET);
  write_payload(pool.a, h.id, key);
  {
    bool once = false;
    Steps steps([&](const char* name) {
      if (once || std::strcmp(name, "publish.before") != 0) return;
      once = true;
      EXPECT_EQ(kvshm_fill_join(b, h), 0);
    });
    ASSERT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr), 1);
    EXPECT_TRUE(once);
  }
  EXPECT_EQ(broken(pool.a), "");
  EXPECT_EQ(drop(b, h), 0);
  EXPECT_EQ(block(b, primary.id).own_holds, 1u);
  EXPECT_EQ(drop(b, reading), 0);
  EXPECT_EQ(drop(pool.a, h), 0);
  EXPECT_EQ(drop(pool.a, primary), 0);
  EXPECT_EQ(stats(pool.a).blocks_held, 0u);
  EXPECT_EQ(broken(pool.a), "");
}

// A guessed handle joins between claim and roll-back of an allocation that fell short.
TEST(SharedFill, AJoinerMeetsARollBack) {
  Pool pool({.blocks = 2});
  kvshm_arena* b = pool.another();
  const kvshm_handle held = make_held(pool.a, key_of(1));
  const std::uint32_t other = 1 - held.id;
  kvshm_handle guess;
  ASSERT_EQ(kvshm_handle_of(b, other, &guess), 0);  // of a free block: its coming life
  bool joined = false;
  {
    Steps steps([&](const char* name) {
      if (!joined && std::strcmp(name, "alloc.rollback") == 0)
        joined = kvshm_fill_join(b, guess) == 0;
    });
    handles_t h(2);
    EXPECT_EQ(kvshm_allocate(pool.a, 2, nullptr, nullptr, h.data(), nullptr, nullptr),
              -KVSHM_ENOSPACE);
  }
  EXPECT_EQ(broken(pool.a), "");
  ASSERT_TRUE(joined);
  EXPECT_EQ(block(b, other).state, unsigned(KVSHM_FILLING)) << "closed under its member";
  EXPECT_EQ(kvshm_abort(b, &guess, 1), 0);
  EXPECT_EQ(drop(pool.a, held), 0);
  EXPECT_EQ(available(pool.a), 2u);
  EXPECT_EQ(broken(pool.a), "");
}

// kvshm_register by a member, after the reaper has given the fill up: no entry, so not kept.
TEST(SharedFill, PublishAfterTheReaperGaveItUp) {
  Pool pool;
  kvshm_arena* reaper = pool.another();
  const block_key key = key_of(1);
  for (bool by_register : {false, true}) {
    kvshm_handle h;
    Child allocator([&](Wire& parent) {
      kvshm_arena* a = attach(pool.name);
      CHILD_CHECK(a);
      const kvshm_handle mine = start(a, key, 1);
      write_payload(a, mine.id, key);
      CHILD_CHECK(slice(a, mine, 0) == 0);
      CHILD_CHECK(parent.send(&mine, sizeof mine));
      parent.listen();
      return 0;
    });
    ASSERT_TRUE(allocator.wire().receive(&h, sizeof h));
    allocator.kill();
    bool joined = false;
    {
      Steps steps([&](const char* name) {  // entry erased, word not yet changed
        if (std::strcmp(name, "reap.erased") == 0 && !joined)
          joined = kvshm_fill_join(pool.a, h) == 0;
      });
      EXPECT_EQ(kvshm_reap(reaper, nullptr), 0);
    }
    ASSERT_TRUE(joined);
    EXPECT_EQ(kvshm_wait(reaper, h, 100), -ENOENT);
    if (by_register) {
      EXPECT_EQ(kvshm_register(pool.a, &h, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr), 1);
    } else {
      EXPECT_EQ(kvshm_publish(pool.a, h), 0);
    }
    EXPECT_EQ(block(pool.a, h.id).state, unsigned(KVSHM_READY_LAST));
    EXPECT_TRUE(payload_right(pool.a, h.id, key));
    EXPECT_EQ(drop(pool.a, h), 0);
    EXPECT_FALSE(present(pool.a, key));
    EXPECT_EQ(stats(pool.a).blocks_free, 16u);
    EXPECT_EQ(broken(pool.a), "");
  }
}

// The handle of the next life can be guessed as soon as the block is claimed; what its last life
// left in the descriptor must not make it publishable.
TEST(SharedFill, AGuessedJoinCannotPublishTheLastLife) {
  Pool pool({.blocks = 4});
  kvshm_arena* b = pool.another();
  for (int i = 0; i < 4; i++) make_cached(pool.a, key_of(std::uint64_t(i)));
  ASSERT_EQ(kvshm_clear(pool.a), 4);  // FREE, each with a life behind it
  int joined = 0;
  Steps steps([&](const char* name) {
    if (std::strcmp(name, "alloc.prepare") != 0) return;
    for (std::uint32_t id = 0; id < 4; id++) {
      kvshm_handle h;
      ASSERT_EQ(kvshm_handle_of(b, id, &h), 0);
      if (kvshm_fill_join(b, h)) continue;
      joined++;
      EXPECT_EQ(kvshm_publish(b, h), -KVSHM_ESTATE);
      EXPECT_EQ(kvshm_abort(b, &h, 1), 0);
    }
  });
  EXPECT_NE(make_held(pool.a, key_of(9)).id, KVSHM_NONE);
  EXPECT_EQ(joined, 1);
  EXPECT_TRUE(present(pool.a, key_of(9)));
  EXPECT_EQ(broken(pool.a), "");
}

// A member publishes just before another one's call looks at the block, at each of its looks: that
// one holds all the while, so no call may say "not yours".
TEST(SharedFill, AnotherMemberPublishesBetweenTwoLooks) {
  Pool pool({.blocks = 4});
  kvshm_arena* b = pool.another();
  const struct {
    const char* name;
    int (*call)(kvshm_arena*, kvshm_handle);
    bool held;  // afterwards
  } calls[] = {
      {"publish", [](kvshm_arena* a, kvshm_handle h) { return kvshm_publish(a, h); }, true},
      {"register",
       [](kvshm_arena* a, kvshm_handle h) {
         return kvshm_register(a, &h, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr) == 1 ? 0 : 1;
       },
       true},
      {"abort", [](kvshm_arena* a, kvshm_handle h) { return kvshm_abort(a, &h, 1); }, false},
      {"priority", [](kvshm_arena* a, kvshm_handle h) { return kvshm_set_priority(a, h, 7); },
       true},
      {"no-cache", [](kvshm_arena* a, kvshm_handle h) { return kvshm_set_no_cache(a, h, 1); },
       true},
  };
  std::uint64_t n = 0;
  for (const auto& c : calls)
    for (int at = 1; at <= 2; at++) {
      const kvshm_handle h = start(pool.a, key_of(n++), 1);
      ASSERT_EQ(slice(pool.a, h, 0), 0);
      ASSERT_EQ(kvshm_fill_join(b, h), 0);
      int looks = 0;
      {
        Steps steps([&](const char* step) {
          if (std::strcmp(step, "hold.look") == 0 && ++looks == at) {
            EXPECT_EQ(kvshm_publish(b, h), 0);
          }
        });
        EXPECT_EQ(c.call(pool.a, h), 0) << c.name << ", look " << at;
      }
      EXPECT_GE(looks, 1) << c.name;
      EXPECT_EQ(kvshm_publish(b, h), 0) << c.name;  // whoever has published it
      EXPECT_EQ(c.held ? drop(pool.a, h) : 0, 0) << c.name;
      EXPECT_EQ(drop(b, h), 0) << c.name;
    }
  EXPECT_EQ(stats(pool.a).misuse_total, 0u);
  EXPECT_EQ(broken(pool.a), "");
}
