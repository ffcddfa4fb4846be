// SPDX-License-Identifier: Apache-2.0
// S26: a process dies, or stops for long, at each step of everything that changes the arena, while
// four others work on keys of their own. They go on: at once after a death, and with bounded delay
// beside those that have stopped, which then go on as if nothing had been.
//
// KVSHM_STOP_SECONDS says how long they stop (2 unless given; the scenario asks for 60).
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "arena/step.hpp"
#include "support.hpp"

using namespace kvshm_test;

namespace {

constexpr int kWorkers = 4, kAtOnce = 20;  // with their dead, workers and test: fewer than slots
constexpr std::uint32_t kBlocks = 512;

struct alignas(64) Progress {
  std::atomic<std::uint64_t> rounds, worst_us, wrong;
};
struct Board {  // shared with the children
  std::atomic<bool> over;
  Progress worker[kWorkers];
};

// Three blocks held all along, others stored and looked up in turn.
int work(const std::string& name, Board& board, int who) {
  kvshm_arena* a = attach(name);
  CHILD_CHECK(a);
  const std::uint64_t base = 1000000 * (who + 1);
  for (std::uint64_t i = 0; i < 3; i++) CHILD_CHECK(make_held(a, key_of(base + i)).seq);
  Progress& mine = board.worker[who];
  for (std::uint64_t n = 0; !board.over; n++) {
    const auto begun = now_ms();
    const block_key held = key_of(base + n % 3), turn = key_of(base + 3 + n % 30);
    kvshm_handle h;
    if (kvshm_acquire(a, held.data(), 0, &h) != 0 || !payload_right(a, h.id, held) || drop(a, h))
      mine.wrong++;
    if (kvshm_acquire(a, turn.data(), 0, &h) == 0) {
      if (!payload_right(a, h.id, turn) || drop(a, h)) mine.wrong++;
    } else if (kvshm_allocate(a, 1, raw(turn), nullptr, &h, nullptr, nullptr) == 0) {
      write_payload(a, h.id, turn);  // else: no space beside one that stopped with all of it
      if (kvshm_register(a, &h, 1, nullptr, KVSHM_REJECT, &h, nullptr) != 1 || drop(a, h))
        mine.wrong++;
    }
    const auto took = std::uint64_t(now_ms() - begun) * 1000;
    if (took > mine.worst_us) mine.worst_us = took;
    mine.rounds++;
    usleep(300);
  }
  return kvshm_close(a, 5000) ? 1 : 0;
}

// Stored and held; {0} where there is no space.
kvshm_handle put(kvshm_arena* a, const block_key& key, int policy, std::uint32_t flags,
                 kvshm_handle parent = {0, KVSHM_NONE, 0}) {
  auto o = sized<kvshm_fill_options>();
  o.flags = flags;
  o.parent = parent;
  kvshm_handle h{};
  if (kvshm_allocate(a, 1, raw(key), &o, &h, nullptr, nullptr)) return {0, KVSHM_NONE, 0};
  write_payload(a, h.id, key);
  if (kvshm_register(a, &h, 1, nullptr, policy, &h, nullptr) != 1) return {0, KVSHM_NONE, 0};
  return h;
}

// Dies with a hold, a last hold and a fill, for somebody to reap.
void leave_a_corpse(const std::string& name, std::uint64_t base) {
  const pid_t pid = fork();
  if (pid == 0) {
    kvshm::set_step_hook(nullptr, nullptr);
    kvshm_arena* a = attach(name);
    if (a) {
      put(a, key_of(base), KVSHM_ALLOW, 0);
      put(a, key_of(base + 1), KVSHM_ALLOW, KVSHM_NO_CACHE);
      kvshm_handle h;
      kvshm_allocate(a, 1, raw(key_of(base + 2)), nullptr, &h, nullptr, nullptr);
    }
    kill(getpid(), SIGKILL);
  }
  int status;
  waitpid(pid, &status, 0);
}

// The arena that a process makes for itself: each one's, as a creator may stop in the midst of it.
std::string arena_of(const std::string& name, pid_t pid) {
  return name + "-" + std::to_string(pid);
}

// Comes to as many steps as one process can without a device; its answers do not matter.
void everything(const std::string& name, std::uint64_t base) {
  auto key = [&](std::uint64_t i) { return key_of(base + i); };
  auto store = [&](kvshm_arena* a, std::uint64_t i, int policy, std::uint32_t flags,
                   kvshm_handle parent = {0, KVSHM_NONE, 0}) {
    return put(a, key(i), policy, flags, parent);
  };
  kvshm_arena* a = attach(name);
  if (!a) return;
  leave_a_corpse(name, base + 900);
  kvshm_reap(a, nullptr);
  const kvshm_handle x = store(a, 0, KVSHM_REJECT, 0);
  drop(a, store(a, 0, KVSHM_ALLOW, 0));   // beside it
  drop(a, store(a, 0, KVSHM_REJECT, 0));  // in vain
  drop(a, store(a, 1, KVSHM_REJECT, KVSHM_QUIET));
  const kvshm_handle last = store(a, 2, KVSHM_REJECT, KVSHM_NO_CACHE);
  drop(a, last);
  drop(a, store(a, 3, KVSHM_ALLOW, 0, x));
  kvshm_set_no_cache(a, x, 1);
  kvshm_set_no_cache(a, x, 0);
  kvshm_set_priority(a, x, 60);
  std::uint32_t ids[4];
  kvshm_lease lease = 0;
  const keys_t chain = {key(0), key(3)};
  if (kvshm_match(a, raw(chain), 2, ids, &lease) > 0) kvshm_release(a, lease);
  if (kvshm_upgrade(a, x, 0) == 0) drop(a, x);
  auto o = sized<kvshm_fill_options>();
  o.parts = 2;
  kvshm_handle f{};
  if (kvshm_allocate(a, 1, raw(key(5)), &o, &f, nullptr, nullptr) == 0) {
    write_payload(a, f.id, key(5));
    for (std::uint32_t p : {0, 1}) kvshm_fill_begin(a, f, p), kvshm_fill_arrive(a, f, p);
    kvshm_publish(a, f);
    drop(a, f);
  }
  kvshm_handle gone{};
  if (kvshm_allocate(a, 1, raw(key(6)), nullptr, &gone, nullptr, nullptr) == 0) {
    kvshm_wait(a, gone, 1);
    kvshm_abort(a, &gone, 1);
  }
  drop(a, x);
  kvshm_evict(a, raw(key(3)), 1);
  // More than there is: claims what it can, gives it back, waits a moment for more.
  handles_t all(kBlocks);
  o = sized<kvshm_fill_options>();
  o.timeout_ms = 2;
  if (kvshm_allocate(a, kBlocks, nullptr, &o, all.data(), nullptr, nullptr) == 0)
    abort_fills(a, all);
  // With evictions: all that is left but a few.
  const auto most = std::uint32_t(std::min<std::uint64_t>(available(a), kBlocks) * 3 / 4);
  all.resize(most);
  if (kvshm_allocate(a, most, nullptr, nullptr, all.data(), nullptr, nullptr) == 0)
    abort_fills(a, all);
  kvshm_tick(a);
  kvshm_close(a, 1000);
  const std::string own = arena_of(name, getpid());
  const auto options = kvshm_test::options({.blocks = 4, .block_bytes = 64});
  if (kvshm_create(&a, own.c_str(), &options) == 0) kvshm_close(a, 1000);
  kvshm_remove(own.c_str(), nullptr, 1);
}

class Freeze : public testing::Test {
 protected:
  Pool pool{{.blocks = kBlocks, .block_bytes = 64}};
  Board* board = static_cast<Board*>(
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<Child> workers;
  std::vector<pid_t> stopped;

  void SetUp() override {
    ASSERT_NE(board, MAP_FAILED);
    for (int w = 0; w < kWorkers; w++)
      workers.emplace_back([this, w](Wire&) { return work(pool.name, *board, w); });
    ASSERT_TRUE(all_go_on(20000)) << "they never began";
  }
  void TearDown() override {
    for (pid_t pid : stopped) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    board->over = true;
    for (auto& w : workers) EXPECT_EQ(w.wait(20000), 0);
    for (auto& w : board->worker) EXPECT_EQ(w.wrong, 0u) << "right bytes of their own, always";
    kvshm_reap(pool.a, nullptr);
    EXPECT_EQ(broken(pool.a), "");
    EXPECT_EQ(stats(pool.a).slots_used, 1u);
    EXPECT_EQ(stats(pool.a).blocks_filling, 0u);
    munmap(board, sizeof *board);
  }

  bool all_go_on(int limit_ms) {  // every worker ends a whole round
    std::uint64_t before[kWorkers];
    for (int w = 0; w < kWorkers; w++) before[w] = board->worker[w].rounds;
    const auto end = now_ms() + limit_ms;
    for (int w = 0; w < kWorkers;) {
      if (board->worker[w].rounds >= before[w] + 2)
        w++;
      else if (now_ms() > end)
        return false;
      else
        usleep(500);
    }
    return true;
  }

  // A process that gets `sig` at this step. Its status once it has stopped or ended.
  int victim(std::string_view step, int sig, pid_t* pid) {
    static std::string at;
    static int deed;
    static std::uint64_t base = 50000000;
    at = step, deed = sig, base += 10000;
    *pid = fork();
    if (*pid == 0) {
      alarm(1200);
      kvshm::set_step_hook(
          [](const char* name, void*) {
            if (deed && at == name) kill(getpid(), std::exchange(deed, 0));
          },
          nullptr);
      everything(pool.name, base);
      _exit(0);
    }
    int status = 0;
    const auto end = now_ms() + 30000;
    while (waitpid(*pid, &status, WNOHANG | WUNTRACED) == 0) {
      if (now_ms() > end) return -1;
      usleep(300);
    }
    return status;
  }
};

std::string unreached;  // steps that no victim came to

}  // namespace

TEST_F(Freeze, DeathAtEveryStepDelaysNobody) {
  int deaths = 0;
  for (std::string_view step : kvshm::kStepNames) {
    pid_t pid;
    const int status = victim(step, SIGKILL, &pid);
    ASSERT_NE(status, -1) << step << ": a victim hangs";
    if (WIFSIGNALED(status)) {
      ASSERT_EQ(WTERMSIG(status), SIGKILL) << step;
      deaths++;
    } else {
      unreached += std::string(step) + " ";
    }
    ASSERT_TRUE(all_go_on(1000)) << "dead at " << step;
    kvshm_reap(pool.a, nullptr);
    kvshm_remove(arena_of(pool.name, pid).c_str(), nullptr, 1);  // if it died in making it
  }
  std::printf("%d deaths; not reached: %s\n", deaths, unreached.c_str());
  EXPECT_GE(deaths, 100);
}

TEST_F(Freeze, WhoStopsAtAnyStepStopsNobody) {
  const char* given = std::getenv("KVSHM_STOP_SECONDS");
  const double seconds = given ? std::atof(given) : 2;
  int stops = 0;
  std::uint64_t worst = 0;
  for (unsigned next = 0; next < kvshm::kStepCount;) {
    while (next < kvshm::kStepCount && stopped.size() < kAtOnce) {
      const std::string_view step = kvshm::kStepNames[next++];
      pid_t pid;
      const int status = victim(step, SIGSTOP, &pid);
      if (status != -1 && !WIFSTOPPED(status)) continue;
      stopped.push_back(pid);
      ASSERT_NE(status, -1) << step << ": it waits for one that has stopped";
      stops++;
      ASSERT_TRUE(all_go_on(2000)) << "stopped at " << step;
    }
    for (auto& w : board->worker) w.worst_us = 0;
    const auto end = now_ms() + std::int64_t(seconds * 1000);
    while (now_ms() < end) ASSERT_TRUE(all_go_on(2000)) << "beside " << stopped.size();
    for (auto& w : board->worker) worst = std::max<std::uint64_t>(worst, w.worst_us);
    for (pid_t pid : stopped) kill(pid, SIGCONT);
    for (pid_t pid : stopped) {  // they end as if nothing had been
      int status = -1;
      const auto last = now_ms() + 30000;
      while (waitpid(pid, &status, WNOHANG) == 0 && now_ms() < last) usleep(300);
      EXPECT_EQ(status, 0);
    }
    stopped.clear();
  }
  std::printf("%d stops of %g s, the slowest round %llu ms\n", stops, seconds,
              (unsigned long long)(worst / 1000));
  EXPECT_GE(stops, 90);
}
