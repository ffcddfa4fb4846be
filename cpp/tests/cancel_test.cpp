// SPDX-License-Identifier: Apache-2.0
// kvshm_cancel_waits, and the limits of what waits for a thread of its own process.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "support.hpp"

using namespace kvshm_test;

namespace {

kvshm_fill_options within(std::uint32_t timeout_ms) {
  auto o = sized<kvshm_fill_options>();
  o.timeout_ms = timeout_ms;
  return o;
}

int allocate(kvshm_arena* a, std::uint32_t timeout_ms, handles_t* out) {
  const auto o = within(timeout_ms);
  return kvshm_allocate(a, std::uint32_t(out->size()), nullptr, &o, out->data(), nullptr, nullptr);
}

// A call in a thread of its own: its answer, and when it came.
class Waiter {
 public:
  explicit Waiter(std::function<int()> call)
      : thread_([this, call = std::move(call)] {
          timespec from, to;
          clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
          rc_ = call();
          over_ = now_ms();
          clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
          cpu_ms_ = double(to.tv_sec - from.tv_sec) * 1e3 + double(to.tv_nsec - from.tv_nsec) / 1e6;
        }) {}
  ~Waiter() {
    if (thread_.joinable()) thread_.join();
  }
  int rc() {
    if (thread_.joinable()) thread_.join();
    return rc_;
  }
  std::int64_t over() { return rc(), over_; }
  double cpu_ms() { return rc(), cpu_ms_; }

 private:
  int rc_ = 1;
  std::int64_t over_ = 0;
  double cpu_ms_ = 0;
  std::thread thread_;
};

std::int64_t middle(std::vector<std::int64_t> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void sleep_for(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Stops the first thread that comes to a step, until let go.
class Stop {
 public:
  explicit Stop(const char* where)
      : steps_([this, where](const char* name) {
          if (std::strcmp(name, where) != 0 || taken_.exchange(true)) return;
          std::unique_lock<std::mutex> lock(mutex_);
          there_ = true;
          changed_.notify_all();
          changed_.wait_for(lock, std::chrono::seconds(30), [&] { return go_; });
        }) {}
  bool reached() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return there_; });
  }
  void go() {
    std::lock_guard<std::mutex> lock(mutex_);
    go_ = true;
    changed_.notify_all();
  }

 private:
  std::atomic<bool> taken_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool there_ = false, go_ = false;
  Steps steps_;
};

}  // namespace

TEST(Cancel, WakesWhoWaitsForSpace) {
  Pool pool({.blocks = 2});
  handles_t all(2);
  ASSERT_EQ(allocate(pool.a, 0, &all), 0);
  std::vector<std::int64_t> late;
  for (int i = 0; i < 9; i++) {
    const std::int64_t from = now_ms();
    Waiter w([&] {
      handles_t one(1);
      return allocate(pool.a, 20000, &one);
    });
    sleep_for(160 + 7 * i);
    const std::int64_t sent = now_ms();
    ASSERT_EQ(kvshm_cancel_waits(pool.a, 1), 0);
    EXPECT_EQ(w.rc(), -KVSHM_ECANCELED);
    late.push_back(w.over() - sent);
    EXPECT_LT(w.cpu_ms(), 0.05 * double(w.over() - from)) << "it spins";
    ASSERT_EQ(kvshm_cancel_waits(pool.a, 0), 0);
  }
  EXPECT_LE(middle(late), 12);  // woken: slept to the end of its slice of 50 ms it would be 25
  EXPECT_EQ(stats(pool.a).alloc_refused_total, 9u);
  EXPECT_EQ(abort_fills(pool.a, all), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Cancel, WakesWhoWaitsForAFill) {
  Pool pool({.blocks = 4});
  kvshm_arena* b = pool.another();
  handles_t h(3);
  ASSERT_EQ(allocate(pool.a, 0, &h), 0);
  std::vector<std::int64_t> late;
  for (int i = 0; i < 9; i++) {
    Waiter one([&] { return kvshm_wait(b, h[0], 20000); });
    Waiter two([&] { return kvshm_wait(b, h[2], 20000); });
    Waiter other([&] { return kvshm_wait(pool.a, h[0], 300); });  // another handle: unimpressed
    sleep_for(80 + 7 * i);
    const std::int64_t sent = now_ms();
    ASSERT_EQ(kvshm_cancel_waits(b, 1), 0);
    EXPECT_EQ(one.rc(), -KVSHM_ECANCELED);
    EXPECT_EQ(two.rc(), -KVSHM_ECANCELED);
    late.push_back(std::max(one.over(), two.over()) - sent);
    EXPECT_EQ(other.rc(), -ETIMEDOUT);
    ASSERT_EQ(kvshm_cancel_waits(b, 0), 0);
  }
  EXPECT_LE(middle(late), 10);  // a slice is 30 ms, the later one's end at 20 on the average
  EXPECT_EQ(abort_fills(pool.a, h), 0);
}

TEST(Cancel, StaysUntilItIsTakenBackAndHindersNoWorkThatNeedsNoWait) {
  Pool pool({.blocks = 2});
  ASSERT_EQ(kvshm_cancel_waits(pool.a, 1), 0);
  ASSERT_EQ(kvshm_cancel_waits(pool.a, 1), 0);
  handles_t all(2), more(1);
  EXPECT_EQ(allocate(pool.a, 5000, &all), 0) << "there is room";
  const kvshm_handle done = all[0];
  const std::int64_t from = now_ms();
  EXPECT_EQ(allocate(pool.a, 5000, &more), -KVSHM_ECANCELED);
  EXPECT_EQ(allocate(pool.a, 0, &more), -KVSHM_ENOSPACE) << "it asked for no wait";
  EXPECT_EQ(kvshm_wait(pool.a, done, 5000), -KVSHM_ECANCELED);
  EXPECT_EQ(kvshm_wait(pool.a, done, 0), -ETIMEDOUT);
  EXPECT_LT(now_ms() - from, 1500);
  kvshm_handle held;
  EXPECT_EQ(kvshm_register(pool.a, &done, 1, raw(key_of(1)), KVSHM_ALLOW, &held, nullptr), 1);
  EXPECT_EQ(kvshm_wait(pool.a, done, 5000), 0) << "it is READY";
  EXPECT_EQ(drop(pool.a, held), 0);
  EXPECT_EQ(kvshm_abort(pool.a, &all[1], 1), 0);
  ASSERT_EQ(kvshm_cancel_waits(pool.a, 0), 0);
  ASSERT_EQ(allocate(pool.a, 0, &all), 0);
  EXPECT_EQ(allocate(pool.a, 60, &more), -ETIMEDOUT);
  EXPECT_EQ(abort_fills(pool.a, all), 0);
  EXPECT_EQ(broken(pool.a), "");
}

TEST(Cancel, BeforeDuringAndAfterTheWaitBegins) {
  // Whenever it comes, no waiter sleeps on: none lasts a slice longer.
  Pool pool({.blocks = 2});
  handles_t h(2);
  ASSERT_EQ(allocate(pool.a, 0, &h), 0);
  std::int64_t longest[2] = {0, 0};
  for (int i = 0; i < 200; i++) {
    std::atomic<bool> begun{false};
    const bool space = i % 2;
    Waiter w([&] {
      handles_t one(1);
      begun = true;
      return space ? allocate(pool.a, 3000, &one) : kvshm_wait(pool.a, h[0], 3000);
    });
    while (!begun) std::this_thread::yield();
    for (std::atomic<int> spin{0}; spin < i * 50;) spin++;
    const std::int64_t sent = now_ms();
    ASSERT_EQ(kvshm_cancel_waits(pool.a, 1), 0);
    EXPECT_EQ(w.rc(), -KVSHM_ECANCELED);
    longest[space] = std::max(longest[space], w.over() - sent);
    ASSERT_EQ(kvshm_cancel_waits(pool.a, 0), 0);
  }
  EXPECT_LT(longest[0], 1000);
  EXPECT_LT(longest[1], 1000);
  EXPECT_EQ(abort_fills(pool.a, h), 0);
}

TEST(Cancel, IsRefusedWhereEveryCallIs) {
  Pool pool;
  Child child([&](Wire&) { return kvshm_cancel_waits(pool.a, 1) == -KVSHM_EFORKED ? 0 : 1; });
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(kvshm_cancel_waits(nullptr, 1), -EINVAL);
  ASSERT_EQ(kvshm_remove(pool.name.c_str(), nullptr, 1), 0);
  EXPECT_EQ(kvshm_cancel_waits(pool.a, 1), 0) << "also where the arena was removed";
  kvshm_close(pool.a, 1000);
  EXPECT_EQ(kvshm_cancel_waits(pool.a, 1), -KVSHM_ECLOSED);
}

// A thread that is stopped in the midst of a look-up has claimed the block's count for itself. Who
// evicts the block waits for it, as long as the call may, and then gives everything back.
TEST(Limits, AnAllocationDoesNotWaitForAStoppedThread) {
  for (const bool cancel : {false, true}) {
    SCOPED_TRACE(cancel);
    Pool pool({.blocks = 3});
    for (int i = 0; i < 2; i++) make_cached(pool.a, key_of(std::uint64_t(i)));
    Stop stop("take.before");
    kvshm_handle found;
    Waiter looker([&] { return kvshm_acquire(pool.a, key_of(1).data(), 0, &found); });
    ASSERT_TRUE(stop.reached());
    const std::int64_t from = now_ms();
    Waiter w([&] {
      handles_t all(3);
      return allocate(pool.a, cancel ? 20000 : 300, &all);
    });
    if (cancel) {
      sleep_for(200);
      ASSERT_EQ(kvshm_cancel_waits(pool.a, 1), 0);
    }
    EXPECT_EQ(w.rc(), cancel ? -KVSHM_ECANCELED : -ETIMEDOUT);
    EXPECT_GE(w.over() - from, cancel ? 190 : 290);
    EXPECT_LT(w.over() - from, 800);
    kvshm_cancel_waits(pool.a, 0);
    const kvshm_stats s = stats(pool.a);
    EXPECT_EQ(s.blocks_filling + s.blocks_evicting + s.blocks_held, 0u) << "all is given back";
    EXPECT_GE(s.blocks_free, 1u);
    // With no limit of its own it gives up after a second.
    const std::int64_t again = now_ms();
    handles_t all(3);
    EXPECT_EQ(allocate(pool.a, 0, &all), -ETIMEDOUT);
    EXPECT_LT(now_ms() - again, 2500);
    EXPECT_NE(std::string(kvshm_last_error()).find("stopped"), std::string::npos);
    stop.go();
    EXPECT_EQ(looker.rc(), -ENOENT);
    EXPECT_EQ(allocate(pool.a, 0, &all), 0);
    EXPECT_EQ(abort_fills(pool.a, all), 0);
    EXPECT_EQ(broken(pool.a), "");
  }
}

TEST(Limits, ASecondCloseKeepsItsOwnTimeOut) {
  Pool pool({.blocks = 1});
  kvshm_arena* b = attach(pool.name);
  ASSERT_TRUE(b);
  make_cached(pool.a, key_of(1));
  Stop stop("take.before");
  kvshm_handle found;
  Waiter looker([&] { return kvshm_acquire(b, key_of(1).data(), 0, &found); });
  ASSERT_TRUE(stop.reached());
  Waiter patient([&] { return kvshm_close(b, 1500); });
  sleep_for(100);
  const std::int64_t from = now_ms();
  EXPECT_EQ(kvshm_close(b, 50), -EBUSY);
  EXPECT_LT(now_ms() - from, 500);
  EXPECT_EQ(patient.rc(), -EBUSY);
  stop.go();
  EXPECT_EQ(looker.rc(), 0);
  EXPECT_EQ(kvshm_close(b, 5000), 0);
  EXPECT_EQ(kvshm_close(b, 0), -KVSHM_ECLOSED);
  EXPECT_EQ(stats(pool.a).blocks_held, 0u);
}
