// SPDX-License-Identifier: Apache-2.0
// io_uring begins to fail in operation, with stores and loads in flight: threads go on, nothing is
// lost or wrong, and the tier says what happened.
#include <atomic>
#include <random>
#include <thread>

#include "refusal.h"
#include "tier_support.hpp"

namespace {
using namespace kvshm_test;

// Random chains down and up, until told to stop; what was wrong.
unsigned long long move_about(kvshm_arena* a, unsigned seed, const std::atomic<bool>& stop,
                              std::atomic<unsigned long long>* right) {
  std::mt19937_64 dice(seed);
  unsigned long long wrong = 0;
  while (!stop) {
    const keys_t keys = keys_of(1 + dice() % 40 * 8, 1 + dice() % 6);
    const auto n = std::uint32_t(keys.size());
    const unsigned what = unsigned(dice() % 8);
    if (what < 3) {
      handles_t h(n);
      if (kvshm_allocate(a, n, raw(keys), nullptr, h.data(), nullptr, nullptr)) continue;
      for (std::size_t i = 0; i < n; i++) write_payload(a, h[i].id, keys[i]);
      kvshm_register(a, h.data(), n, nullptr, KVSHM_ALLOW, h.data(), nullptr);
      kvshm_drop(a, h.data(), n);
    } else if (what < 5) {
      kvshm_evict(a, raw(keys), n);
    } else {
      const Loaded l = load_chain(a, keys);
      wrong += std::uint64_t(l.held) > l.right;
      *right += l.right;
    }
  }
  return wrong;
}

int switch_under_load(const std::string& name, const std::string& path, int error) {
  kvshm_arena* a = attach(name);
  CHILD_CHECK(a && open_tier(a, path) == 0 && await_tier(a));
  if (tier_of(a).engine != KVSHM_TIER_URING) return 77;
  std::atomic<bool> stop{false};
  std::atomic<unsigned long long> right{0}, wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; t++)
    threads.emplace_back([&, t] { wrong += move_about(a, t, stop, &right); });
  usleep(150000);
  int rc = 1;
  std::thread([&] {
    const refusal r = {SYS_io_uring_enter, -1, 0, error};
    rc = refuse_calls(&r, 1, SECCOMP_FILTER_FLAG_TSYNC);
  }).join();
  const unsigned long long before = right;
  for (const std::int64_t end = now_ms() + 10000;
       tier_of(a).engine != KVSHM_TIER_THREADS && now_ms() < end;)
    usleep(5000);
  usleep(300000);
  stop = true;
  for (auto& t : threads) t.join();
  CHILD_CHECK(rc == 0);
  const kvshm_tier t = tier_of(a);
  CHILD_CHECK(t.engine == KVSHM_TIER_THREADS);
  const std::string why = std::string("io_uring failed in operation: ") + std::strerror(error);
  CHILD_CHECK(std::string(t.why).find(why) != std::string::npos);
  CHILD_CHECK(kvshm_tier_drain(a, 20000) == 0);
  CHILD_CHECK(wrong == 0 && before > 0 && right > before);
  CHILD_CHECK(t.state == KVSHM_TIER_OK);
  CHILD_CHECK(own_stats(a).tier_switches_total == 1);
  CHILD_CHECK(own_stats(a).tier_damaged_total == 0);
  CHILD_CHECK(own_stats(a).tier_store_failed_total == 0);
  // Of what flew, all came to its end: nothing is left in anybody's hands.
  for (const std::int64_t end = now_ms() + 5000; available(a) != stats(a).blocks_total;) {
    CHILD_CHECK(now_ms() < end);
    usleep(5000);
  }
  CHILD_CHECK(wrong_payloads(a).empty() && broken(a).empty() && broken_image(a).empty());
  const keys_t fresh = keys_of(90000, 20);
  cache_chain(a, fresh);
  CHILD_CHECK(kvshm_tier_drain(a, 20000) == 0 && kvshm_clear(a) >= 20);
  CHILD_CHECK(load_chain(a, fresh).right == 20);
  CHILD_CHECK(kvshm_close(a, 10000) == 0);
  return 0;
}

TEST(TierSwitch, UnderLoad) {
  for (const int error : {EPERM, ENOSYS}) {
    TierFile file("switch");
    Pool pool({64, 65536});
    Child process([&](Wire&) { return switch_under_load(pool.name, file.path, error); });
    const int code = process.wait();
    if (code == 77) GTEST_SKIP() << "no io_uring here";
    EXPECT_EQ(code, 0) << error;
  }
}

}  // namespace
