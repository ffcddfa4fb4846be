// SPDX-License-Identifier: Apache-2.0
// Operations on blocks that are there: match, hold, release, no-cache, evict, policies.
#include <thread>

#include "scene.hpp"

namespace kvshm_sweep {
namespace {

int match_twice(kvshm_arena* a, Scene& s) {
  std::uint32_t ids[4], twice[4];
  kvshm_lease lease, second;
  if (kvshm_match(a, raw(s.cached), 4, ids, &lease) != 4) return 1;
  for (int i = 0; i < 4; i++)
    if (int rc = right_bytes(a, ids[i], s.cached[i])) return rc;
  if (kvshm_match(a, raw(s.cached), 4, twice, &second) != 4) return 2;
  if (kvshm_lease_trim(a, second, 2)) return 3;
  if (kvshm_release(a, lease)) return 4;
  return -kvshm_release(a, second);
}

int pin(kvshm_arena* a, Scene& s) {
  handles_t h(2);
  kvshm_lease lease;
  for (int i = 0; i < 2; i++)
    if (kvshm_acquire(a, s.cached[i].data(), 0, &h[i])) return 1;
  if (kvshm_drop(a, h.data(), 2)) return 2;
  if (kvshm_pin(a, h.data(), 2, 7, &lease)) return 3;
  return -kvshm_release(a, lease);
}

// A key with the tag and a bucket of another: found by the tag, told apart by the key.
int look_alike(kvshm_arena* a, Scene& s) {
  block_key k = s.cached[2];
  k[8] ^= 1;
  kvshm_handle h;
  return kvshm_acquire(a, k.data(), 0, &h) == -ENOENT ? 0 : kWrong + 10;
}

int find_fills(kvshm_arena* a, Scene& s) {
  kvshm_handle h;
  if (kvshm_acquire(a, s.mine_key.data(), 0, &h) != -KVSHM_EPENDING || h.id != s.mine.id) return 1;
  if (kvshm_acquire(a, s.fill_key.data(), 0, &h) != -KVSHM_EPENDING) return 2;
  return h.id == s.fill.id && h.seq == s.fill.seq ? 0 : kWrong + 12;
}

int hold_a_duplicate(kvshm_arena* a, Scene& s) {
  auto o = sized<kvshm_fill_options>();
  o.flags = KVSHM_QUIET;
  kvshm_handle h;
  if (kvshm_allocate(a, 1, raw(s.cached[0]), &o, &h, nullptr, nullptr)) return 1;
  write_payload(a, h.id, s.cached[0]);
  std::uint8_t result;
  if (kvshm_register(a, &h, 1, nullptr, KVSHM_ALLOW, &h, &result) != 1) return 2;
  if (kvshm_upgrade(a, h, 0)) return 3;
  if (kvshm_drop(a, &h, 1)) return 4;
  return -kvshm_drop(a, &h, 1);
}

int close_by_no_cache(kvshm_arena* a, Scene& s) {
  kvshm_handle h;
  if (kvshm_acquire(a, s.cached[2].data(), KVSHM_NO_TOUCH, &h)) return 1;
  if (kvshm_set_no_cache(a, h, 1)) return 2;
  if (kvshm_drop(a, &h, 1)) return 3;
  return 0;
}

// A thread in the middle of a transition; another comes to the same block and has to wait for it.
int two_threads(kvshm_arena* a, Scene& s) {
  std::atomic<bool> inside{false}, sleeps{false};
  static thread_local bool slow = false;
  add_aside([&](const char* step) {
    if (slow && std::strcmp(step, "take.taken") == 0) {
      inside = true;
      for (int i = 0; i < 20000 && !sleeps; i++) usleep(100);
    }
    if (!slow && std::strcmp(step, "count.sleep") == 0) sleeps = true;
  });
  kvshm_handle one = {}, two = {};
  std::thread t([&] {
    slow = true;
    kvshm_acquire(a, s.cached[0].data(), 0, &one);
  });
  for (int i = 0; i < 20000 && !inside; i++) usleep(100);
  const int rc = kvshm_acquire(a, s.cached[0].data(), 0, &two);
  sleeps = true;
  t.join();
  add_aside(nullptr);
  if (rc || !one.seq) return 1;
  if (block(a, one.id).own_holds != 2) return kWrong + 11;
  if (kvshm_drop(a, &one, 1)) return 2;
  return -kvshm_drop(a, &two, 1);
}

int take_marked(kvshm_arena* a, Scene& s) {
  handles_t h(2), got(7);
  for (int i = 0; i < 2; i++)
    if (kvshm_acquire(a, s.cached[i].data(), 0, &h[i])) return 1;
  if (kvshm_drop(a, h.data(), 2)) return 2;
  if (kvshm_mark_victims(a, h.data(), 2) != 2) return 3;
  return -kvshm_allocate(a, 7, nullptr, nullptr, got.data(), nullptr, nullptr);
}

// Two children whose links are stale, for the walk to repair: the older one goes, then the younger.
void stale_links(Scene& s) {
  kvshm_handle up;
  EXPECT_EQ(kvshm_acquire(s.a, s.cached[3].data(), 0, &up), 0);
  make_cached(s.a, key_of(41), up);
  make_cached(s.a, key_of(42), up);
  const keys_t older = keys_of(41, 1), younger = keys_of(42, 1);
  EXPECT_EQ(kvshm_evict(s.a, raw(older), 1), 1);
  EXPECT_EQ(kvshm_evict(s.a, raw(younger), 1), 1);
  EXPECT_EQ(drop(s.a, up), 0);
}

int publish_once(kvshm_shadow* s, void*) {
  kvshm_policy p = KVSHM_POLICY_INIT;
  std::snprintf(p.name, sizeof p.name, "adaptive");
  p.sample = 24;
  p.flags = KVSHM_POLICY_MEMORY | KVSHM_POLICY_TOUCHES;
  s->policy = p;
  s->weight = 2;
  return 1;
}

int set_policy(kvshm_arena* a) {
  auto p = sized<kvshm_policy>();
  if (kvshm_get_policy(a, &p)) return 1;
  p.sample = 10;
  return -kvshm_set_policy(a, &p);
}

}  // namespace

std::vector<Op> hold_ops() {
  return {
      {.name = "match",
       .act =
           [](kvshm_arena* a, Scene& s) {
             std::uint32_t ids[4];
             kvshm_lease lease;
             if (kvshm_match(a, raw(s.cached), 4, ids, &lease) != 4) return 1;
             for (int i = 0; i < 4; i++)
               if (int rc = right_bytes(a, ids[i], s.cached[i])) return rc;
             return -kvshm_release(a, lease);
           }},
      {.name = "match twice, trim", .act = match_twice},
      {.name = "pin", .act = pin},
      {.name = "acquire what only looks alike", .act = look_alike},
      {.name = "find fills", .act = find_fills},
      {.name = "hold a duplicate twice", .act = hold_a_duplicate},
      {.name = "no cache, last drop", .act = close_by_no_cache, .may_go = 4, .goes = 4},
      {.name = "priority",
       .act =
           [](kvshm_arena* a, Scene& s) {
             kvshm_handle h;
             if (kvshm_acquire(a, s.cached[2].data(), 0, &h)) return 1;
             if (kvshm_set_priority(a, h, 70)) return 2;
             return -kvshm_drop(a, &h, 1);
           }},
      {.name = "two threads", .act = two_threads, .alone = true},
      {.name = "evict and clear",
       .act =
           [](kvshm_arena* a, Scene& s) {
             if (kvshm_evict(a, raw(s.cached), 1) != 1) return 1;
             return kvshm_clear(a) == 3 ? 0 : 2;
           },
       .may_go = 0xf,
       .goes = 0xf},
      {.name = "evict by marks", .act = take_marked, .may_go = 0xf, .goes = 0xf},
      {.name = "evict, stale links",
       .act =
           [](kvshm_arena* a, Scene&) {
             handles_t h(6);
             return -kvshm_allocate(a, 6, nullptr, nullptr, h.data(), nullptr, nullptr);
           },
       .setup = stale_links,
       .may_go = 0xf,
       .goes = 0xf},
      {.name = "controller",
       .act =
           [](kvshm_arena* a, Scene&) {
             kvshm_set_controller(publish_once, nullptr);
             const std::int64_t n = kvshm_step_policy(a);
             kvshm_set_controller(nullptr, nullptr);
             return n < 0 ? int(-n) : 0;
           },
       .setup =
           [](Scene& s) {
             std::uint32_t ids[4];
             kvshm_lease lease;
             core(s.a).sb->policy.touch_mask = 0;
             EXPECT_EQ(kvshm_match(s.a, raw(s.cached), 4, ids, &lease), 4);
             EXPECT_EQ(kvshm_release(s.a, lease), 0);
           }},
      {.name = "policy", .act = [](kvshm_arena* a, Scene&) { return set_policy(a); }},
  };
}

}  // namespace kvshm_sweep
