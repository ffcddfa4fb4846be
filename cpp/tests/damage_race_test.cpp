// SPDX-License-Identifier: Apache-2.0
// Bits of a live arena's metadata flip while threads and another process work in it: errors and
// misses, but nobody ends, hangs or touches what is not theirs. The fuzz targets (cpp/fuzz) do the
// same step by step; here the damage comes at any moment, and the kernel is the real one.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "capi/call.hpp"
#include "support.hpp"

namespace kvshm_test {
namespace {

constexpr std::uint32_t kBlocks = 96;

#if defined(__SANITIZE_THREAD__)
#define KVSHM_TSAN 1
#endif

std::uint64_t next(std::uint64_t& x) {  // xorshift64
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return x;
}

// One word of what lies between the superblock's first line and the data, the mark `dead` left out,
// since nothing is left to see in a dead arena.
void flip(kvshm::Arena& a, std::uint64_t& x) {
  const kvshm::Geometry& g = a.geometry;
  const std::uint64_t from[] = {128,         g.slots_off, g.hot_off,     g.hot_off,   g.cold_off,
                                g.index_off, g.free_off,  g.regions_off, g.marks_off, g.index_off};
  const std::uint64_t bytes[] = {kvshm::kPage - 128,
                                 4 * sizeof(kvshm::SlotRecord),
                                 kBlocks * sizeof(kvshm::Hot),
                                 kBlocks * sizeof(kvshm::Hot),
                                 kBlocks * sizeof(kvshm::Cold),
                                 g.buckets * kvshm::kIndexWays * 8,
                                 g.ghost_off - g.free_off,
                                 g.region_words * 8 * kvshm::kSlots,
                                 g.events_off - g.marks_off,
                                 g.buckets * kvshm::kIndexWays * 8};
  const unsigned part = unsigned(next(x) % std::size(from));
  const std::uint64_t at = from[part] + next(x) % (bytes[part] / 8) * 8;
  auto& word = *reinterpret_cast<std::atomic<std::uint64_t>*>(a.base + at);
  word.fetch_xor(std::uint64_t{1} << next(x) % 64, std::memory_order_relaxed);
}

// Works until told to stop; the longest call in ms.
std::int64_t work(kvshm_arena* a, std::uint64_t seed, const std::function<bool()>& more) {
  using clock = std::chrono::steady_clock;
  std::uint64_t x = seed;
  std::int64_t longest = 0;
  while (more()) {
    const auto begun = clock::now();
    const keys_t keys = keys_of(next(x) % 80, 1 + next(x) % 6);
    const auto n = std::uint32_t(keys.size());
    std::vector<std::uint32_t> ids(n);
    handles_t h(n);
    kvshm_lease lease = 0;
    switch (next(x) % 8) {
      case 0:
      case 1:
        if (kvshm_match(a, raw(keys), n, ids.data(), &lease) > 0) kvshm_release(a, lease);
        break;
      case 2:
      case 3: {
        kvshm_fill_options o = KVSHM_FILL_OPTIONS_INIT;
        o.timeout_ms = std::uint32_t(next(x) % 3);
        if (kvshm_allocate(a, n, raw(keys), &o, h.data(), nullptr, nullptr)) break;
        if (kvshm_register(a, h.data(), n, nullptr, int(next(x) % 2), h.data(), nullptr) > 0)
          kvshm_drop(a, h.data(), n);
        kvshm_abort(a, h.data(), n);
        break;
      }
      case 4:
        kvshm_evict(a, raw(keys), n);
        break;
      case 5: {
        kvshm_object* o = nullptr;
        if (kvshm_object_create(a, *raw(keys), 600, nullptr, &o) == 0) kvshm_object_commit(o);
        kvshm_object_close(o);
        if (kvshm_object_get(a, *raw(keys), &o) == 0) kvshm_object_close(o);
        break;
      }
      case 6:
        kvshm_reap(a, nullptr);
        kvshm_handle_of(a, std::uint32_t(next(x) % kBlocks), h.data());
        kvshm_wait(a, h[0], 1);
        break;
      default:
        kvshm_is_valid(a, nullptr, nullptr);
        stats(a);
    }
    const auto took = clock::now() - begun;
    longest = std::max<std::int64_t>(
        longest, std::chrono::duration_cast<std::chrono::milliseconds>(took).count());
  }
  return longest;
}

TEST(DamageRace, BitsFlipWhileOthersWork) {
#ifdef KVSHM_TSAN
  GTEST_SKIP() << "the damage is a data race by intention";
#endif
  for (std::uint64_t round = 0; round < 6; round++) {
    Pool pool({.blocks = kBlocks, .block_bytes = 256});
    for (std::uint64_t k = 0; k < 60; k++) make_cached(pool.a, key_of(k));
    Child child([&](Wire& wire) {
      kvshm_arena* a = attach(pool.name);
      wire.tell();
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
      work(a, 77 + round, [&] { return std::chrono::steady_clock::now() < end; });
      return kvshm_close(a, 1000) == 0 ? 0 : 1;
    });
    Wire wire = child.wire();
    ASSERT_EQ(wire.listen(), '.');
    kvshm_arena* a = attach(pool.name);
    std::atomic<bool> stop{false};
    std::int64_t longest[2] = {0, 0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 2; t++)
      threads.emplace_back(
          [&, t] { longest[t] = work(a, 5 * round + t + 1, [&] { return !stop; }); });
    std::uint64_t x = 1000 + round;
    for (int i = 0; i < 400; i++) {
      for (unsigned n = 0; n < 1 + round * 8; n++) flip(*a->impl, x);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    stop = true;
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(child.wait(), 0) << "round " << round;
    EXPECT_EQ(kvshm_close(a, 5000), 0);
    // A thread of this process that is in a transition is waited for, 10 s at most.
    EXPECT_LT(std::max(longest[0], longest[1]), 9000) << "round " << round;
  }
}

}  // namespace
}  // namespace kvshm_test
