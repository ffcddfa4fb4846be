// SPDX-License-Identifier: Apache-2.0
// A process that stands still (SIGSTOP, a debugger, a thread that is never scheduled) at each step
// of each operation: the others go on within their limits, nothing of it is taken from it, and when
// it goes on it finds everything as it left it.
#include <signal.h>
#include <sys/wait.h>

#include "arena/step.hpp"
#include "support.hpp"

using namespace kvshm_test;

namespace {

void stop_at(int k) {
  static int left;
  left = k;
  kvshm::set_step_hook(
      [](const char*, void*) {
        if (--left == 0) raise(SIGSTOP);
      },
      nullptr);
}

// True: stopped. False: it has ended (and may be waited for).
bool stops(pid_t pid) {
  siginfo_t how = {};
  for (int i = 0; i < 20000; i++) {
    if (waitid(P_PID, id_t(pid), &how, WSTOPPED | WEXITED | WNOWAIT | WNOHANG)) return false;
    if (how.si_pid == pid) return how.si_code == CLD_STOPPED;
    usleep(1000);
  }
  return false;
}

int put(kvshm_arena* a, const block_key& key, std::uint32_t flags = 0) {
  kvshm_handle h;
  auto o = sized<kvshm_fill_options>();
  o.flags = flags;
  if (int rc = kvshm_allocate(a, 1, raw(key), &o, &h, nullptr, nullptr)) return rc;
  write_payload(a, h.id, key);
  if (kvshm_register(a, &h, 1, nullptr, KVSHM_ALLOW, &h, nullptr) != 1) return 1;
  if (!payload_right(a, h.id, key)) return 2;
  return kvshm_drop(a, &h, 1);
}

// What the others do meanwhile. None of it may fail, and none may wait for the one that stands.
struct Scene {
  Pool pool{{.blocks = 24, .block_bytes = 128}};
  keys_t cached = keys_of(0, 4);  // a chain, inactive
  block_key held_key = key_of(100), fill_key = key_of(200);
  kvshm_handle held, fill;  // a hold; a shared fill of two slices

  Scene() {
    kvshm_handle up = {0, KVSHM_NONE, 0};
    handles_t chain;
    for (auto& k : cached) chain.push_back(up = make_held(pool.a, k, up));
    EXPECT_EQ(kvshm_drop(pool.a, chain.data(), 4), 0);
    for (int i = 0; i < 14; i++) make_cached(pool.a, key_of(1000 + i));  // 4 blocks stay free
    held = make_held(pool.a, held_key);
    auto o = sized<kvshm_fill_options>();
    o.parts = 2;
    EXPECT_EQ(kvshm_allocate(pool.a, 1, raw(fill_key), &o, &fill, nullptr, nullptr), 0);
    write_payload(pool.a, fill.id, fill_key);
    EXPECT_EQ(kvshm_fill_begin(pool.a, fill, 0), 0);
    EXPECT_EQ(kvshm_fill_arrive(pool.a, fill, 0), 0);
  }

  void work(const std::string& where, std::uint32_t dead) {
    kvshm_arena* a = pool.a;
    const std::int64_t begin = now_ms();
    auto report = sized<kvshm_reap_report>();
    ASSERT_EQ(kvshm_reap(a, &report), 0) << where;
    ASSERT_LE(report.slots_dead, dead) << where << ": a stopped process was taken for dead";
    for (int i = 0; i < 12; i++)  // new keys, with evictions
      ASSERT_EQ(put(a, key_of(5000 + i)), 0) << where << ": " << kvshm_last_error();
    kvshm_handle h;
    ASSERT_EQ(kvshm_acquire(a, held_key.data(), 0, &h), 0) << where;
    ASSERT_EQ(drop(a, h), 0);
    // The keys that it may have in hand: found or not, but an answer.
    for (const block_key& key : {cached[0], cached[3], key_of(600)}) {
      const int rc = kvshm_acquire(a, key.data(), 0, &h);
      if (rc == 0) {
        ASSERT_TRUE(payload_right(a, h.id, key)) << where;
        ASSERT_EQ(drop(a, h), 0);
      } else if (rc == -KVSHM_EPENDING) {
        const int waited = kvshm_wait(a, h, 20);
        ASSERT_TRUE(waited == -ETIMEDOUT || waited == -ENOENT || waited == 0) << where << waited;
      } else {
        ASSERT_EQ(rc, -ENOENT) << where;
      }
      const int rc2 = put(a, key, KVSHM_QUIET);  // and may be put beside it
      ASSERT_EQ(rc2, 0) << where << ": " << kvshm_last_error();
    }
    kvshm_handle too_much[24];
    ASSERT_EQ(kvshm_allocate(a, 24, nullptr, nullptr, too_much, nullptr, nullptr), -KVSHM_ENOSPACE)
        << where;
    kvshm_arena* other = attach(pool.name);  // comes and goes
    ASSERT_NE(other, nullptr) << where;
    ASSERT_EQ(put(other, key_of(7000)), 0) << where;
    ASSERT_EQ(kvshm_close(other, 1000), 0) << where;
    ASSERT_LT(now_ms() - begin, 5000) << where << ": the others were held up";
  }
};

using Act = std::function<int(kvshm_arena*, Scene&)>;

// dead: processes that `prepare` leaves behind. attaching: the stops begin with attach.
void stop_everywhere(const char* name, int least, const Act& act, const Act& prepare = nullptr,
                     std::uint32_t dead = 0, bool attaching = false) {
  int stopped = 0;
  for (int k = 1; !::testing::Test::HasFatalFailure(); k++) {
    ASSERT_LT(k, 400) << name << " does not end";
    const std::string where = std::string(name) + ", step " + std::to_string(k);
    Scene scene;
    Child child([&](Wire&) {
      if (attaching) stop_at(k);
      kvshm_arena* a = attach(scene.pool.name);
      CHILD_CHECK(a);
      if (prepare) CHILD_CHECK(prepare(a, scene) == 0);
      if (!attaching) stop_at(k);
      return act(a, scene);
    });
    if (!stops(child.pid())) {
      EXPECT_EQ(child.wait(), 0) << where;
      EXPECT_GE(stopped, least) << name << ": too few steps to show anything";
      return;
    }
    stopped++;
    scene.work(where, dead);
    if (::testing::Test::HasFatalFailure()) return;
    ::kill(child.pid(), SIGCONT);
    ASSERT_EQ(child.wait(), 0) << where << ": it was robbed, or is confused";
    auto report = sized<kvshm_reap_report>();
    ASSERT_EQ(kvshm_reap(scene.pool.a, &report), 0);
    ASSERT_EQ(broken(scene.pool.a), "") << where;
    ASSERT_EQ(wrong_payloads(scene.pool.a), "") << where;
  }
}

}  // namespace

TEST(Stopped, Putting) {
  stop_everywhere("put", 8, [](kvshm_arena* a, Scene&) { return put(a, key_of(600)); });
}

TEST(Stopped, AllocatingWithEviction) {
  stop_everywhere("evicting allocation", 8, [](kvshm_arena* a, Scene&) {
    handles_t h(6);  // 4 free, 2 victims
    const int rc = kvshm_allocate(a, 6, nullptr, nullptr, h.data(), nullptr, nullptr);
    return rc ? 1 : kvshm_abort(a, h.data(), 6) ? 2 : 0;
  });
}

TEST(Stopped, MatchingAndReleasing) {
  stop_everywhere("match", 4, [](kvshm_arena* a, Scene& s) {
    std::uint32_t ids[4];
    kvshm_lease lease;
    const std::int64_t n = kvshm_match(a, raw(s.cached), 4, ids, &lease);
    for (std::int64_t i = 0; i < n;
         i++)  // what it holds is what it asked for, however long it stood
      if (!payload_right(a, ids[i], s.cached[std::size_t(i)])) return 1;
    return n < 0 ? 2 : n ? -kvshm_release(a, lease) : 0;
  });
}

TEST(Stopped, JoiningAndPublishing) {
  stop_everywhere("join", 3, [](kvshm_arena* a, Scene& s) {
    if (kvshm_fill_join(a, s.fill)) return 1;
    if (kvshm_fill_begin(a, s.fill, 1)) return 2;
    if (kvshm_fill_arrive(a, s.fill, 1)) return 3;
    if (kvshm_publish(a, s.fill)) return 4;
    return payload_right(a, s.fill.id, s.fill_key) ? -kvshm_drop(a, &s.fill, 1) : 5;
  });
}

TEST(Stopped, EvictingAndClosing) {
  stop_everywhere("evict, close", 8, [](kvshm_arena* a, Scene& s) {
    if (kvshm_evict(a, raw(s.cached[1]), 1) < 0) return 1;
    return -kvshm_close(a, 1000);
  });
}

TEST(Stopped, Attaching) {
  stop_everywhere(
      "attach", 2, [](kvshm_arena* a, Scene&) { return -kvshm_close(a, 1000); }, nullptr, 0, true);
}

TEST(Stopped, Reaping) {
  auto leave_remains = [](kvshm_arena*, Scene& s) {
    Child dying([&](Wire&) {
      kvshm_arena* a = attach(s.pool.name);
      CHILD_CHECK(a);
      if (int rc = hold_and_fill(a, s)) return rc;
      raise(SIGKILL);
      return 0;
    });
    return dying.wait() == -SIGKILL ? 0 : 1;
  };
  stop_everywhere(
      "reap", 8, [](kvshm_arena* a, Scene&) { return -kvshm_reap(a, nullptr); }, leave_remains, 1);
}
