// SPDX-License-Identifier: Apache-2.0
#include "evict/controller.hpp"

#include <atomic>
#include <bit>
#include <cstring>

#include "arena/posts.hpp"
#include "evict/ghost.hpp"
#include "evict/touches.hpp"

namespace kvshm {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;  // hints: see controller.hpp
constexpr std::uint32_t kBatch = 256, kMaxBatches = kSlots * kTouchRing / kBatch;

std::atomic<kvshm_controller_fn> the_function{nullptr};
std::atomic<void*> the_user{nullptr};

bool is_adaptive(const Arena& a) {
  std::uint64_t name;
  std::memcpy(&name, "adaptive", 8);
  return a.sb->policy.name[0].load(kRelaxed) == name;
}

// Even; or odd for two steps: its writer died, or is stopped.
bool usable(Arena& a, std::uint64_t version) {
  const bool known = a.odd_version == version;
  a.odd_version = version & 1 ? version : 0;
  return !(version & 1) || known;
}

}  // namespace

void set_controller(kvshm_controller_fn fn, void* user) {
  the_function.store(nullptr, std::memory_order_release);
  the_user.store(user, std::memory_order_release);
  the_function.store(fn, std::memory_order_release);
}

std::uint32_t step_controller(Arena& a) {
  const kvshm_controller_fn fn = the_function.load(std::memory_order_acquire);
  if (!fn || !(a.sb->policy.flags.load(kRelaxed) & KVSHM_POLICY_TOUCHES)) return 0;
  // Another thread of this attachment is at it: its step does for both.
  std::unique_lock<std::mutex> lock(a.controller_mutex, std::try_to_lock);
  if (!lock || take_post(a, KVSHM_POST_CONTROLLER)) return 0;
  ShadowHeader& s = *a.shadow;
  s.at.store(arena_seconds(a), kRelaxed);
  const ShadowShape shape = shadow_shape(a.nblocks);
  std::uint64_t records[kBatch];
  std::uint32_t total = 0;
  for (std::uint32_t i = 0; i < kMaxBatches; i++) {
    kvshm_shadow view{};
    view.size = sizeof view;
    view.records = records;
    view.n = take_touches(a, records, kBatch);
    if (!view.n) break;
    total += view.n;
    view.bits = shadow_bits(a.nblocks);
    view.caches = kShadows;
    view.ways = shape.ways;
    view.sets = shape.sets;
    view.entries = reinterpret_cast<std::uint64_t*>(&s + 1);
    view.clock = std::uint32_t(s.records.load(kRelaxed)) - view.n;
    for (unsigned c = 0; c < kShadows; c++)
      view.hits[c] = std::bit_cast<double>(s.hits[c].load(kRelaxed));
    // What is tuned is `adaptive`, and only over the table that was seen here.
    const std::uint64_t seen = a.sb->policy.version.load(std::memory_order_acquire);
    const std::uint64_t weight = s.weight.load(kRelaxed);
    view.weight = std::uint32_t(weight);
    view.stale = seen != s.published.load(kRelaxed);
    const bool publish =
        fn(&view, the_user.load(std::memory_order_acquire)) && is_adaptive(a) && usable(a, seen);
    for (unsigned c = 0; c < kShadows; c++)
      s.hits[c].store(std::bit_cast<std::uint64_t>(view.hits[c]), kRelaxed);
    if (!publish) continue;
    const std::uint64_t version = write_policy(a, view.policy, seen);
    if (!version) continue;
    KVSHM_STEP("controller.published");
    s.published.store(version, kRelaxed);
    s.weight.store(view.weight, kRelaxed);
    if (view.weight != weight) s.switches.store(s.switches.load(kRelaxed) + 1, kRelaxed);
  }
  return total;
}

}  // namespace kvshm
