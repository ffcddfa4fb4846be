// SPDX-License-Identifier: Apache-2.0
// Every operation, killed at every step of it: a real process that SIGKILLs itself at its k-th step
// point, for k = 1, 2, ... until the operation comes to its end. Afterwards the dead are reaped (by
// kvshm_reap, or by the next process that takes the slot) and everything must add up: no broken
// invariant, no block lost, right bytes under every key, survivors' holds and fills untouched.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <set>

#include "arena/step.hpp"
#include "support.hpp"

using namespace kvshm_test;

namespace {

[[noreturn]] void die() {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

// In a child: death at the k-th step from here on.
void die_at(int k) {
  static int left;
  left = k;
  kvshm::set_step_hook(
      [](const char*, void*) {
        if (--left == 0) die();
      },
      nullptr);
}

// What every run begins with, made by the surviving process.
struct Scene {
  Pool pool{{.blocks = 12, .block_bytes = 128}};
  keys_t cached = keys_of(0, 4);  // a chain, inactive
  block_key held_key = key_of(100), fill_key = key_of(200), mine_key = key_of(300);
  kvshm_handle held, fill, mine;  // a hold; a shared fill of two slices; a fill of one

  Scene() {
    kvshm_handle up = {0, KVSHM_NONE, 0};
    handles_t chain;
    for (auto& k : cached) chain.push_back(up = make_held(pool.a, k, up));
    EXPECT_EQ(kvshm_drop(pool.a, chain.data(), 4), 0);
    held = make_held(pool.a, held_key);
    auto o = sized<kvshm_fill_options>();
    o.parts = 2;
    EXPECT_EQ(kvshm_allocate(pool.a, 1, raw(fill_key), &o, &fill, nullptr, nullptr), 0);
    write_payload(pool.a, fill.id, fill_key);
    EXPECT_EQ(kvshm_fill_begin(pool.a, fill, 0), 0);
    EXPECT_EQ(kvshm_fill_arrive(pool.a, fill, 0), 0);
    EXPECT_EQ(kvshm_allocate(pool.a, 1, raw(mine_key), nullptr, &mine, nullptr, nullptr), 0);
  }

  // The child's attachment is gone: is all as it must be?
  void check(const std::string& where) {
    kvshm_arena* a = pool.a;
    ASSERT_EQ(broken(a), "") << where;
    ASSERT_EQ(wrong_payloads(a), "") << where;
    ASSERT_EQ(unfindable(a), "") << where;
    ASSERT_EQ(block(a, held.id).own_holds, 1u) << where;
    ASSERT_EQ(block(a, held.id).holders, block(a, mine.id).holders) << where;
    ASSERT_EQ(block(a, mine.id).seq, mine.seq) << where;
    ASSERT_EQ(block(a, mine.id).state, unsigned(KVSHM_FILLING)) << where;
    kvshm_handle h;
    ASSERT_EQ(kvshm_acquire(a, held_key.data(), 0, &h), 0) << where;
    ASSERT_EQ(h.id, held.id) << where;
    ASSERT_EQ(drop(a, h), 0);
    finish_fill(where);
    ASSERT_EQ(drop(a, held), 0) << where;
    ASSERT_EQ(kvshm_abort(a, &mine, 1), 0) << where;
    ASSERT_EQ(stats(a).slots_used, 1u) << where;
    // Everything can be had again, and nothing is left over.
    std::uint64_t total = 0, free = 0;
    ASSERT_EQ(kvshm_reset_inactive(a, &total, &free), 0) << where << ": " << free << " free";
    const handles_t all = fill_blocks(a, 12);
    ASSERT_EQ(abort_fills(a, all), 0);
    ASSERT_EQ(broken(a), "") << where;
  }

  // The shared fill is mine all the while; the dead member may have written its slice, or not.
  void finish_fill(const std::string& where) {
    const kvshm_block_info b = block(pool.a, fill.id);
    ASSERT_EQ(b.seq, fill.seq) << where;
    ASSERT_EQ(b.own_holds, 1u) << where;
    const int rc = kvshm_publish(pool.a, fill);
    if (b.arrived == 3) {
      ASSERT_EQ(rc, 0) << where;
      kvshm_handle h;
      ASSERT_EQ(kvshm_acquire(pool.a, fill_key.data(), 0, &h), 0) << where;
      ASSERT_EQ(drop(pool.a, h), 0);
      ASSERT_EQ(drop(pool.a, fill), 0) << where;
    } else {
      ASSERT_EQ(rc, -KVSHM_EPART) << where;
      ASSERT_EQ(kvshm_abort(pool.a, &fill, 1), 0) << where;
    }
  }
};

using Prepare = std::function<int(kvshm_arena*, Scene&)>;
using Act = std::function<int(kvshm_arena*, Scene&)>;

// Runs `act` in children that die at step k = 1, 2, ...; at least `least` deaths.
void kill_everywhere(const char* name, int least, const Prepare& prepare, const Act& act,
                     bool attach_under_fire = false) {
  for (int k = 1;; k++) {
    ASSERT_LT(k, 400) << name << " does not end";
    const std::string where = std::string(name) + ", step " + std::to_string(k);
    Scene scene;
    if (::testing::Test::HasFatalFailure()) return;
    Child child([&](Wire&) {
      if (attach_under_fire) die_at(k);
      kvshm_arena* a = attach(scene.pool.name);
      CHILD_CHECK(a);
      if (prepare) {
        const int rc = prepare(a, scene);
        if (rc) return rc;
      }
      if (!attach_under_fire) die_at(k);
      return act(a, scene);
    });
    const int end = child.wait(20000);
    ASSERT_TRUE(end == 0 || end == -SIGKILL) << where << " ended with " << end;
    // Two ways to clear up after the dead, turn about.
    if (k % 2) {
      ASSERT_EQ(kvshm_reap(scene.pool.a, nullptr), 0);
    } else {
      kvshm_arena* next = attach(scene.pool.name);
      ASSERT_NE(next, nullptr);
      ASSERT_EQ(kvshm_close(next, 1000), 0);
      ASSERT_EQ(kvshm_reap(scene.pool.a, nullptr), 0);
    }
    scene.check(where);
    if (::testing::Test::HasFatalFailure()) return;
    if (end == 0) {
      EXPECT_GT(k, least) << name << ": too few steps were met to prove anything";
      return;
    }
  }
}

int put(kvshm_arena* a, const block_key& key, int policy, std::uint32_t flags = 0) {
  kvshm_handle h;
  auto o = sized<kvshm_fill_options>();
  o.flags = flags;
  if (int rc = kvshm_allocate(a, 1, raw(key), &o, &h, nullptr, nullptr)) return -rc;
  write_payload(a, h.id, key);
  if (kvshm_register(a, &h, 1, nullptr, policy, &h, nullptr) != 1) return 2;
  return kvshm_drop(a, &h, 1) ? 3 : 0;
}

}  // namespace

TEST(Crash, AllocateAndAnnounce) {
  kill_everywhere("allocate", 8, nullptr, [](kvshm_arena* a, Scene&) {
    handles_t h(3);
    const keys_t keys = keys_of(500, 3);
    return -kvshm_allocate(a, 3, raw(keys), nullptr, h.data(), nullptr, nullptr);
  });
}

TEST(Crash, AllocateWithEviction) {
  kill_everywhere("evicting allocation", 20, nullptr, [](kvshm_arena* a, Scene&) {
    handles_t h(8);  // 5 free, 3 victims
    const keys_t keys = keys_of(500, 8);
    return -kvshm_allocate(a, 8, raw(keys), nullptr, h.data(), nullptr, nullptr);
  });
}

TEST(Crash, AllocateFallsShort) {
  kill_everywhere("short allocation", 20, nullptr, [](kvshm_arena* a, Scene&) {
    handles_t h(11);
    const int rc = kvshm_allocate(a, 11, nullptr, nullptr, h.data(), nullptr, nullptr);
    return rc == -KVSHM_ENOSPACE ? 0 : 1;
  });
}

TEST(Crash, RegisterAndDrop) {
  kill_everywhere("register", 5, nullptr,
                  [](kvshm_arena* a, Scene&) { return put(a, key_of(600), KVSHM_ALLOW); });
}

TEST(Crash, RegisterQuiet) {
  kill_everywhere("quiet register", 5, nullptr, [](kvshm_arena* a, Scene&) {
    return put(a, key_of(600), KVSHM_ALLOW, KVSHM_QUIET);
  });
}

TEST(Crash, RegisterADuplicate) {
  kill_everywhere("duplicate", 8, nullptr, [](kvshm_arena* a, Scene& s) {
    return put(a, s.held_key, KVSHM_ALLOW, KVSHM_QUIET);
  });
}

TEST(Crash, RegisterADuplicateOfACachedBlock) {
  kill_everywhere("duplicate of a cached block", 8, nullptr, [](kvshm_arena* a, Scene& s) {
    return put(a, s.cached[3], KVSHM_ALLOW, KVSHM_QUIET);
  });
}

TEST(Crash, RegisterIsRejected) {
  kill_everywhere("reject", 8, nullptr, [](kvshm_arena* a, Scene& s) {
    return put(a, s.cached[1], KVSHM_REJECT, KVSHM_QUIET);
  });
}

TEST(Crash, RegisterBesideAFill) {
  kill_everywhere("duplicate of a fill", 8, nullptr, [](kvshm_arena* a, Scene& s) {
    return put(a, s.mine_key, KVSHM_ALLOW, KVSHM_QUIET);
  });
}

TEST(Crash, MatchAndRelease) {
  kill_everywhere("match", 4, nullptr, [](kvshm_arena* a, Scene& s) {
    std::uint32_t ids[4];
    kvshm_lease lease;
    if (kvshm_match(a, raw(s.cached), 4, ids, &lease) != 4) return 1;
    return -kvshm_release(a, lease);
  });
}

TEST(Crash, NoCacheClosesAtTheLastDrop) {
  kill_everywhere("close at the last drop", 5, nullptr, [](kvshm_arena* a, Scene& s) {
    kvshm_handle h;
    if (kvshm_acquire(a, s.cached[2].data(), 0, &h)) return 1;
    if (kvshm_set_no_cache(a, h, 1)) return 2;
    return -kvshm_drop(a, &h, 1);
  });
}

TEST(Crash, EvictAndClear) {
  kill_everywhere("evict", 12, nullptr, [](kvshm_arena* a, Scene& s) {
    if (kvshm_evict(a, raw(s.cached[0]), 1) != 1) return 1;
    return kvshm_clear(a) == 3 ? 0 : 2;
  });
}

TEST(Crash, JoinArrivePublish) {
  kill_everywhere("join", 3, nullptr, [](kvshm_arena* a, Scene& s) {
    if (kvshm_fill_join(a, s.fill)) return 1;
    if (kvshm_fill_begin(a, s.fill, 1)) return 2;
    if (kvshm_fill_arrive(a, s.fill, 1)) return 3;
    if (kvshm_publish(a, s.fill)) return 4;
    return -kvshm_drop(a, &s.fill, 1);
  });
}

TEST(Crash, JoinAndLeave) {
  kill_everywhere("join and leave", 0, nullptr, [](kvshm_arena* a, Scene& s) {
    if (kvshm_fill_join(a, s.fill)) return 1;
    return -kvshm_abort(a, &s.fill, 1);
  });
}

TEST(Crash, Abort) {
  handles_t* h = new handles_t(2);
  kill_everywhere(
      "abort", 8,
      [h](kvshm_arena* a, Scene&) {
        const keys_t keys = keys_of(700, 2);
        return -kvshm_allocate(a, 2, raw(keys), nullptr, h->data(), nullptr, nullptr);
      },
      [h](kvshm_arena* a, Scene&) { return -kvshm_abort(a, h->data(), 2); });
  delete h;
}

TEST(Crash, Close) {
  kill_everywhere(
      "close", 5,
      [](kvshm_arena* a, Scene& s) {
        std::uint32_t ids[4];
        kvshm_lease lease;
        const handles_t fills = fill_blocks(a, 2);
        if (put(a, key_of(800), KVSHM_ALLOW)) return 1;
        if (kvshm_fill_join(a, s.fill)) return 2;
        return kvshm_match(a, raw(s.cached), 4, ids, &lease) == 4 ? 0 : 3;
      },
      [](kvshm_arena* a, Scene&) { return -kvshm_close(a, 1000); });
}

TEST(Crash, Attach) {
  kill_everywhere(
      "attach", 0, nullptr, [](kvshm_arena* a, Scene&) { return -kvshm_close(a, 1000); }, true);
}

// The reaper dies while it reaps another's remains: a third one finishes.
TEST(Crash, Reap) {
  auto leave_remains = [](Scene& s) {
    Child dying([&](Wire&) {
      kvshm_arena* a = attach(s.pool.name);
      CHILD_CHECK(a);
      if (int rc = hold_and_fill(a, s)) return rc;
      if (int rc = hold_a_duplicate(a, s)) return rc;
      kvshm::set_step_hook(
          [](const char* name, void*) {  // and in the middle of an eviction
            if (std::strcmp(name, "close.unkeyed") == 0) die();
          },
          nullptr);
      kvshm_evict(a, raw(s.cached[3]), 1);
      return 1;
    });
    EXPECT_EQ(dying.wait(), -SIGKILL);
  };
  kill_everywhere(
      "reap", 12,
      [&](kvshm_arena*, Scene& s) {
        leave_remains(s);
        return 0;
      },
      [](kvshm_arena* a, Scene&) { return -kvshm_reap(a, nullptr); });
  kill_everywhere(
      "scrub by the next owner of the slot", 12,
      [&](kvshm_arena* first, Scene& s) {
        leave_remains(s);  // in the slot after `first`'s
        (void)first;
        return 0;
      },
      [](kvshm_arena*, Scene& s) { return attach(s.pool.name) ? 0 : 1; });
}

TEST(Crash, Objects) {
  kill_everywhere("object", 20, nullptr, [](kvshm_arena* a, Scene&) {
    kvshm_object* o = nullptr;
    const block_key key = key_of(950);
    std::vector<char> bytes(300, 'x');
    if (kvshm_object_create(a, key.data(), bytes.size(), nullptr, &o)) return 1;
    if (kvshm_object_write(o, 0, bytes.data(), bytes.size())) return 2;
    kvshm_object_close(o);  // not committed: nothing of it may be seen
    return 0;
  });
}

// Creators die at every step of creation; whoever opens afterwards gets a whole arena.
TEST(Crash, Create) {
  int deaths = 0;
  for (int k = 1;; k++) {
    const std::string name = fresh_name("create");
    Child creator([&](Wire&) {
      die_at(k);
      const kvshm_options o = options({.blocks = 8});
      kvshm_arena* a = nullptr;
      CHILD_CHECK(kvshm_create(&a, name.c_str(), &o) == 0);
      return 0;
    });
    const int end = creator.wait();
    ASSERT_TRUE(end == 0 || end == -SIGKILL) << end;
    kvshm_options o = options({.blocks = 8});
    kvshm_arena* a = nullptr;
    ASSERT_EQ(kvshm_open(&a, name.c_str(), &o), 0) << "step " << k << ": " << kvshm_last_error();
    make_cached(a, key_of(1));
    EXPECT_EQ(kvshm_reap(a, nullptr), 0);
    EXPECT_EQ(broken(a), "") << "step " << k;
    EXPECT_EQ(stats(a).blocks_total, 8u);
    EXPECT_EQ(stats(a).slots_used, 1u);
    EXPECT_EQ(kvshm_close(a, 1000), 0);
    EXPECT_EQ(kvshm_remove(name.c_str(), nullptr, 0), 0) << kvshm_last_error();
    if (end == 0) break;
    deaths++;
  }
  EXPECT_GE(deaths, 5);
}

// Eight processes open at once; the first creators die at a step, another one each round.
TEST(Crash, CreationRace) {
  constexpr int kProcesses = 8, kRounds = 25;
  const char* const steps[] = {"create.named", "create.sized", "create.populated", "create.filled",
                               "create.ready"};
  struct Shared {
    std::atomic<int> deaths_left, arrived;
    const char* where;
  };
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(shared, MAP_FAILED);
  int died = 0;
  for (int round = 0; round < kRounds; round++) {
    const std::string name = fresh_name("race");
    shared->deaths_left = 1 + round % 2;
    shared->arrived = 0;
    shared->where = steps[round % 5];
    std::vector<Child> children;
    for (int p = 0; p < kProcesses; p++)
      children.emplace_back([&](Wire& parent) {
        kvshm::set_step_hook(
            [](const char* step, void* user) {
              auto* s = static_cast<Shared*>(user);
              if (std::strcmp(step, s->where) == 0 && s->deaths_left.fetch_sub(1) > 0) die();
            },
            shared);
        shared->arrived++;
        for (int i = 0; shared->arrived < kProcesses && i < 20000; i++) usleep(100);
        const kvshm_options o = options({.blocks = 8});
        kvshm_arena* a = nullptr;
        CHILD_CHECK(kvshm_open(&a, name.c_str(), &o) == 0);
        auto info = sized<kvshm_info>();
        CHILD_CHECK(kvshm_get_info(a, &info) == 0);
        CHILD_CHECK(parent.send(info.uuid, 16));
        CHILD_CHECK(parent.listen());
        CHILD_CHECK(kvshm_close(a, 1000) == 0);
        return 0;
      });
    std::set<std::string> uuids;
    std::vector<bool> alive;
    for (auto& c : children) {
      char uuid[16];
      alive.push_back(c.wire().receive(uuid, 16));
      if (alive.back()) uuids.insert(std::string(uuid, 16));
    }
    EXPECT_EQ(uuids.size(), 1u) << "round " << round << ", deaths at " << shared->where;
    kvshm_arena* a = attach(name);
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(kvshm_reap(a, nullptr), 0);
    EXPECT_EQ(broken(a), "");
    for (std::size_t p = 0; p < children.size(); p++) {
      if (alive[p]) children[p].tell();
      const int end = children[p].wait();
      EXPECT_EQ(end, alive[p] ? 0 : -SIGKILL) << "round " << round;
      died += !alive[p];
    }
    EXPECT_EQ(kvshm_close(a, 1000), 0);
    EXPECT_EQ(kvshm_remove(name.c_str(), nullptr, 0), 0) << kvshm_last_error();
    if (HasFailure()) break;
  }
  munmap(shared, sizeof(Shared));
  EXPECT_GE(died, kRounds / 2);
}
