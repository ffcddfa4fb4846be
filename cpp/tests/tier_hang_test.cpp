// SPDX-License-Identifier: Apache-2.0
// A tier on a disk that hangs, and on one that is slow: who works with memory notices nothing, calls
// keep their limits, queues theirs, and when the disk is back all goes on.
#include <signal.h>

#include <algorithm>
#include <fstream>

#include "mount_support.hpp"
#include "tier_support.hpp"

namespace {
using namespace kvshm_test;

constexpr std::uint64_t kBytes = 65536;
constexpr std::uint32_t kQueue = 64, kDeadlineMs = 1000;
constexpr int kLimitMs = 1000;  // of a call that waits for nothing, on a machine that is busy

TierSpec spec_of(std::uint32_t engine) {
  TierSpec s;
  s.engine = engine;
  s.bytes = 40 << 20;
  s.queue = kQueue;
  s.deadline_ms = kDeadlineMs;
  return s;
}

template <class F>
std::int64_t ms_of(F&& f) {
  const std::int64_t before = now_ms();
  f();
  return now_ms() - before;
}

std::int64_t now_us() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * std::int64_t{1000000} + t.tv_nsec / 1000;
}

// Calls on memory: a look-up of both tiers, a block of its own, and back. p99 in us.
std::int64_t p99_of_memory(kvshm_arena* a, const keys_t& cached, std::uint64_t* next) {
  std::vector<std::int64_t> took;
  for (int i = 0; i < 1500; i++) {
    const std::int64_t before = now_us();
    kvshm_load* load = nullptr;
    EXPECT_EQ(kvshm_match_load(a, raw(cached), std::uint32_t(cached.size()), 0, 0, &load, nullptr),
              std::int64_t(cached.size()));
    kvshm_load_free(load);
    const block_key key = key_of((*next)++);
    kvshm_handle h;
    if (kvshm_allocate(a, 1, raw(key), nullptr, &h, nullptr, nullptr) == 0) {
      kvshm_register(a, &h, 1, nullptr, KVSHM_ALLOW, &h, nullptr);
      kvshm_drop(a, &h, 1);
    }
    took.push_back(now_us() - before);
  }
  std::sort(took.begin(), took.end());
  return took[took.size() * 99 / 100];
}

std::uint64_t resident_kib() {
  std::ifstream f("/proc/self/status");
  for (std::string line; std::getline(f, line);)
    if (line.rfind("RssAnon:", 0) == 0) return std::stoull(line.substr(8));
  return 0;
}

class TierHang : public testing::TestWithParam<std::uint32_t> {};

#define OPEN_TIER(a, path)                                        \
  if (const int rc = open_tier(a, path, spec_of(GetParam())); rc) \
    GTEST_SKIP() << "rc " << rc << ": " << kvshm_last_error();    \
  ASSERT_TRUE(await_tier(a));                                     \
  if (!tier_of(a).direct) GTEST_SKIP() << "no O_DIRECT: " << tier_of(a).why

// Items 65 and 66.
TEST_P(TierHang, MemoryNoticesNothing) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer follows no child that is forked beside threads and starts some";
#endif
  NEEDS_EXT4(disk);
  Pool pool({256, kBytes});
  OPEN_TIER(pool.a, disk.file());
  kvshm_arena* closes = pool.another();
  OPEN_TIER(closes, disk.file());
  const keys_t on_disk = keys_of(1, 32), cached = keys_of(1000, 16), closing = keys_of(2000, 8);
  cache_chain(pool.a, on_disk);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
  ASSERT_EQ(kvshm_clear(pool.a), 32);
  cache_chain(pool.a, cached);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
  std::uint32_t ids[16];
  kvshm_lease lease;
  ASSERT_EQ(kvshm_match(pool.a, raw(cached), 16, ids, &lease), 16);
  std::uint64_t next = 100000;
  const std::int64_t before = p99_of_memory(pool.a, cached, &next);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
  [[maybe_unused]] const std::uint64_t memory = resident_kib();
  const kvshm_stats was = stats(pool.a);

  ASSERT_TRUE(disk.freeze());
  const std::int64_t frozen = now_ms();
  const std::int64_t during = p99_of_memory(pool.a, cached, &next);
  EXPECT_LE(tier_of(pool.a).queued, kQueue);
  EXPECT_GT(stats(pool.a).tier_dropped_total - was.tier_dropped_total, 1000u);
  // Of what went through memory so fast, all may have been evicted before its turn.
  for (std::uint64_t i = 0; i < 60 && !tier_of(pool.a).in_flight; i++, usleep(50000))
    cache_chain(pool.a, keys_of(2500 + 10 * i, 4));
  EXPECT_TRUE(await_tier(pool.a, KVSHM_TIER_STALLED, kDeadlineMs + 3000));
  const std::int64_t stalled = now_ms() - frozen;
  const std::int64_t out = p99_of_memory(pool.a, cached, &next);
  EXPECT_LT(during, 10 * before + 2000) << before;
  EXPECT_LT(out, 10 * before + 2000) << before;
  EXPECT_LE(tier_of(pool.a).queued, kQueue);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(resident_kib(), memory + 16384);  // theirs grows anyway
#endif

  // Look-ups return in time, and find memory.
  keys_t both = cached;
  both.insert(both.end(), on_disk.begin(), on_disk.end());
  EXPECT_LT(ms_of([&] { EXPECT_EQ(load_chain(pool.a, both, 300).right, 16u); }), kLimitMs);
  // Who comes now comes in, and reads what is said.
  EXPECT_LT(ms_of([&] {
              Child newcomer([&](Wire&) {
                kvshm_arena* a = attach(pool.name);
                CHILD_CHECK(a && open_tier(a, disk.file(), spec_of(GetParam())) == 0);
                CHILD_CHECK(tier_of(a).slots > 0);
                CHILD_CHECK(load_chain(a, cached).right == 16);
                CHILD_CHECK(kvshm_close(a, 2000) == 0);
                return 0;
              });
              EXPECT_EQ(newcomer.wait(20000), 0);
            }),
            5 * kLimitMs);
  // Who waits for the disk is told, in time. Who goes need not stay: another one moves.
  cache_chain(closes, closing);
  EXPECT_LT(ms_of([&] { EXPECT_EQ(kvshm_tier_drain(pool.a, 200), -ETIMEDOUT); }), kLimitMs);
  EXPECT_LT(ms_of([&] { EXPECT_EQ(kvshm_close(closes, 300), 0); }), 300 + kLimitMs);

  disk.thaw();
  const std::int64_t thawed = now_ms();
  EXPECT_TRUE(await_tier(pool.a, KVSHM_TIER_OK, 5000));
  const std::int64_t back = now_ms() - thawed;
  EXPECT_EQ(kvshm_tier_drain(pool.a, 5000), 0);
  EXPECT_EQ(load_chain(pool.a, on_disk).right, 32u);
  const keys_t more = keys_of(3000, 20);
  cache_chain(pool.a, more);
  EXPECT_EQ(kvshm_tier_drain(pool.a, 10000), 0);
  EXPECT_EQ(kvshm_release(pool.a, lease), 0);
  kvshm_clear(pool.a);
  EXPECT_EQ(load_chain(pool.a, more).right, 20u);
  EXPECT_EQ(load_chain(pool.a, cached).right, 16u);
  EXPECT_EQ(broken(pool.a), "");
  EXPECT_EQ(broken_image(pool.a), "");
  std::printf(
      "p99 us: %lld, frozen %lld, stalled %lld; \"stalled\" after %lld ms, \"ok\" %lld ms "
      "after the thaw\n",
      (long long)before, (long long)during, (long long)out, (long long)stalled, (long long)back);
}

// A load that is under way when the disk begins to hang is a miss at its deadline, no later.
TEST_P(TierHang, AWaitingLoadIsAMiss) {
  Pool pool({64, kBytes});
  TierFile file("hang");
  OPEN_TIER(pool.a, file.path);
  const keys_t keys = keys_of(1, 12);
  cache_chain(pool.a, keys);
  ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
  ASSERT_EQ(kvshm_clear(pool.a), 12);
  kvshm::File f(open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  SlowDisk slow(f.get(), 256 << 10);  // 3 s
  if (!slow.works()) GTEST_SKIP() << "the disk cannot be made slow: " << slow.why_not();
  Child process([&](Wire& wire) {
    kvshm_arena* a = attach(pool.name);
    CHILD_CHECK(a && open_tier(a, file.path, spec_of(GetParam())) == 0 && await_tier(a));
    wire.tell();
    CHILD_CHECK(wire.listen());
    kvshm_load* load = nullptr;
    CHILD_CHECK(kvshm_match_load(a, raw(keys), 12, 0, 0, &load, nullptr) == 12);
    const std::int64_t before = now_ms();
    CHILD_CHECK(kvshm_load_wait(load, 100) == -ETIMEDOUT && now_ms() - before < 100 + kLimitMs);
    CHILD_CHECK(kvshm_load_wait(load, 20000) == 0);
    CHILD_CHECK(now_ms() - before < kDeadlineMs + 2 * kLimitMs);
    CHILD_CHECK(kvshm_load_status(load, nullptr, nullptr) < 12);
    kvshm_load_free(load);
    return 0;
  });
  ASSERT_TRUE(process.listen());
  slow.take(process.pid());
  process.tell();
  EXPECT_EQ(process.wait(), 0);
}

// What a process held in memory comes back although the disk hangs; with threads, which are in the
// kernel, when it is back.
TEST_P(TierHang, TheDeadGiveBackTheirMemory) {
  NEEDS_EXT4(disk);
  Pool pool({64, kBytes});
  const keys_t held = keys_of(1, 16);
  TierSpec spec = spec_of(GetParam());
  store_and_leave(pool, disk.file(), spec, held);
  if (testing::Test::HasFailure()) return;
  spec.mover = KVSHM_OFF;  // the child's work
  ASSERT_EQ(open_tier(pool.a, disk.file(), spec), 0) << kvshm_last_error();
  if (!tier_of(pool.a).direct) GTEST_SKIP() << "no O_DIRECT: " << tier_of(pool.a).why;
  Child process([&](Wire& wire) {
    kvshm_arena* a = attach(pool.name);
    std::uint32_t ids[16];
    kvshm_lease lease;
    CHILD_CHECK(a && open_tier(a, disk.file(), spec_of(GetParam())) == 0 && await_tier(a));
    CHILD_CHECK(kvshm_match(a, raw(held), 16, ids, &lease) == 16);
    wire.tell();
    CHILD_CHECK(wire.listen());
    cache_chain(a, keys_of(1000, 16));
    usleep(300000);
    CHILD_CHECK(tier_of(a).in_flight > 0);
    wire.tell();
    for (;;) pause();
  });
  ASSERT_TRUE(process.listen());
  ASSERT_TRUE(disk.freeze());
  process.tell();
  ASSERT_TRUE(process.listen());
  ASSERT_EQ(::kill(process.pid(), SIGKILL), 0);
  auto gone = [&](int ms) {
    for (const std::int64_t end = now_ms() + ms; now_ms() < end; usleep(10000)) {
      kvshm_reap(pool.a, nullptr);
      if (available(pool.a) == 64) return true;
    }
    return false;
  };
  EXPECT_EQ(gone(2500), GetParam() == KVSHM_TIER_URING);
  disk.thaw();
  EXPECT_TRUE(gone(5000));
  process.kill();
  EXPECT_EQ(load_chain(pool.a, held).right, 16u);
}

// Item 19: stores that wait for the disk while their blocks go to others.
TEST_P(TierHang, BlocksThatAreTakenMeanwhileAreMissesOrRight) {
  NEEDS_EXT4(disk);
  Pool pool({128, kBytes});
  OPEN_TIER(pool.a, disk.file());
  const keys_t keys = keys_of(1, 100);
  ASSERT_TRUE(disk.freeze());
  for (const block_key& k : keys) make_cached(pool.a, k);
  usleep(200000);
  EXPECT_GT(kvshm_evict(pool.a, raw(keys), 100), 0);
  for (std::uint64_t i = 0; i < 300; i++) make_cached(pool.a, key_of(1000 + i));
  disk.thaw();
  ASSERT_EQ(kvshm_tier_drain(pool.a, 20000), 0);
  kvshm_clear(pool.a);
  std::uint32_t right = 0;
  for (const block_key& k : keys) {
    const Loaded l = load_chain(pool.a, {k});
    EXPECT_EQ(l.held, std::int64_t(l.right)) << "another's data";
    right += l.right;
  }
  EXPECT_GT(right, 0u);    // some were under way
  EXPECT_LT(right, 100u);  // and some were let go
  EXPECT_EQ(stats(pool.a).tier_damaged_total, 0u);
}

// Item 65, the second: a disk of 1 MB/s.
TEST_P(TierHang, ASlowDiskTakesWhatItCan) {
  Pool pool({512, kBytes});
  TierFile file("slow");
  const keys_t wanted = keys_of(1, 4);
  store_and_leave(pool, file.path, spec_of(GetParam()), wanted);
  if (testing::Test::HasFailure()) return;
  ASSERT_EQ(kvshm_clear(pool.a), 4);
  kvshm::File f(open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  SlowDisk slow(f.get(), 1000000, 1000000);
  if (!slow.works()) GTEST_SKIP() << "the disk cannot be made slow: " << slow.why_not();
  Child process([&](Wire& wire) {
    kvshm_arena* a = attach(pool.name);
    TierSpec spec = spec_of(GetParam());
    spec.deadline_ms = 10000;
    CHILD_CHECK(a && open_tier(a, file.path, spec) == 0 && await_tier(a));
    wire.tell();
    CHILD_CHECK(wire.listen());
    for (std::uint64_t i = 0; i < 400; i++) make_cached(a, key_of(1000 + i));
    CHILD_CHECK(tier_of(a).queued <= kQueue);
    usleep(100000);  // writes are under way
    const std::int64_t before = now_ms();
    CHILD_CHECK(load_chain(a, wanted).right == 4);
    const std::int64_t took = now_ms() - before;
    const std::uint32_t left = tier_of(a).queued;
    CHILD_CHECK(left > kQueue / 2);  // it did not wait for these
    CHILD_CHECK(took < kLimitMs);    // nor for those under way
    CHILD_CHECK(kvshm_tier_drain(a, 30000) == 0);
    std::printf("4 loads in %lld ms before %u stores\n", (long long)took, left);
    std::fflush(stdout);
    return 0;
  });
  ASSERT_TRUE(process.listen());
  slow.take(process.pid());
  process.tell();
  EXPECT_EQ(process.wait(), 0);
  const kvshm_stats s = stats(pool.a);
  EXPECT_GT(s.tier_dropped_total, 300u - kQueue);
  EXPECT_EQ(
      s.tier_stored_total + s.tier_dropped_total + s.tier_present_total + s.tier_store_failed_total,
      s.tier_offered_total);
  EXPECT_EQ(wrong_payloads(pool.a), "");
}

INSTANTIATE_TEST_SUITE_P(Engines, TierHang, testing::Values(KVSHM_TIER_URING, KVSHM_TIER_THREADS),
                         [](const auto& i) {
                           return i.param == KVSHM_TIER_URING ? "Uring" : "Threads";
                         });

}  // namespace
