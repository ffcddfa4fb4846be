// SPDX-License-Identifier: Apache-2.0
// Operations that make blocks: allocate, announce, parts, register, abort.
#include <thread>

#include "scene.hpp"

namespace kvshm_sweep {
namespace {

constexpr unsigned kAll = 0xf;  // every cached key

int allocate_quiet(kvshm_arena* a, const block_key& key, kvshm_handle* h) {
  auto o = sized<kvshm_fill_options>();
  o.flags = KVSHM_QUIET;
  return kvshm_allocate(a, 1, raw(key), &o, h, nullptr, nullptr);
}

int allocate_keyed(kvshm_arena* a, std::uint32_t n) {
  handles_t h(n);
  const keys_t keys = keys_of(500, n);
  return -kvshm_allocate(a, n, raw(keys), nullptr, h.data(), nullptr, nullptr);
}

// The look at the clock spares a candidate once, and so many uses make an epoch.
void touch_and_age(Scene& s) {
  std::uint32_t ids[4];
  kvshm_lease lease;
  EXPECT_EQ(kvshm_match(s.a, raw(s.cached), 4, ids, &lease), 4);
  EXPECT_EQ(kvshm_release(s.a, lease), 0);
  auto& sb = *core(s.a).sb;
  sb.aged_at = sb.tick - sb.policy.age_period * kBlocks;
  sb.age_epoch = 2;  // the memory of uses is of an older one
  sb.policy.flags = KVSHM_POLICY_ALL & ~KVSHM_POLICY_SKETCH & ~KVSHM_POLICY_QUEUES;
}

// A key of one bucket, which so has eight places.
block_key in_one_bucket(std::uint8_t i) {
  block_key k = {};
  k[0] = i;
  k[8] = 1;
  return k;
}

// Keys whose two buckets are one: nine of them are more than it has room for.
int fill_a_bucket(kvshm_arena* a) {
  keys_t keys;
  for (std::uint8_t i = 1; i <= 9; i++) keys.push_back(in_one_bucket(i));
  handles_t h(keys.size());
  std::vector<std::uint8_t> status(keys.size());
  const auto n = std::uint32_t(keys.size());
  if (kvshm_allocate(a, n, raw(keys), nullptr, h.data(), status.data(), nullptr)) return 1;
  if (status[8] != KVSHM_ST_FULL) return 2;
  for (std::uint32_t i = 0; i < n; i++) write_payload(a, h[i].id, keys[i]);
  if (kvshm_register(a, h.data(), n, nullptr, KVSHM_ALLOW, h.data(), status.data()) != n) return 3;
  if (status[8] != KVSHM_ST_PRIVATE) return 4;
  return -kvshm_drop(a, h.data(), n);
}

int join_and_fill(kvshm_arena* a, Scene& s) {
  if (kvshm_fill_join(a, s.fill)) return 1;
  if (kvshm_fill_begin(a, s.fill, 1)) return 2;
  write_half(a, s.fill.id, s.fill_key, 1);
  if (kvshm_fill_arrive(a, s.fill, 1)) return 3;
  if (kvshm_publish(a, s.fill)) return 4;
  if (int rc = right_bytes(a, s.fill.id, s.fill_key)) return rc;
  return -kvshm_drop(a, &s.fill, 1);
}

// Two memberships of one process: the first leave is not the last.
int join_twice(kvshm_arena* a, Scene& s) {
  if (kvshm_fill_join(a, s.fill) || kvshm_fill_join(a, s.fill)) return 1;
  if (kvshm_abort(a, &s.fill, 1)) return 2;
  if (block(a, s.fill.id).own_holds != 1) return kWrong + 1;
  if (kvshm_fill_begin(a, s.fill, 1)) return 3;
  return -kvshm_abort(a, &s.fill, 1);
}

// In the child: the slower one of two that announce the same key. It has a place of higher rank.
std::unique_ptr<Child> rival;

int start_rival(kvshm_arena* a, Scene& s) {
  rival = std::make_unique<Child>([&](Wire& wire) {
    kvshm_arena* mine = attach(s.pool.name);
    CHILD_CHECK(mine);
    follow({.pause_at_name = "insert.tentative", .pause = [&] {
              wire.tell();
              wire.listen();
            }});
    kvshm_handle h;
    std::uint8_t status;
    const block_key key = in_one_bucket(2);
    CHILD_CHECK(kvshm_allocate(mine, 1, raw(key), nullptr, &h, &status, nullptr) == 0);
    return status == KVSHM_ST_PENDING || status == KVSHM_ST_EXISTS ? 0 : kWrong + 6;
  });
  if (!rival->listen()) return 1;
  const block_key lower = in_one_bucket(1);
  return kvshm_evict(a, raw(lower), 1) == 1 ? 0 : 2;
}

int outrank(kvshm_arena* a) {
  kvshm_handle h;
  std::uint8_t status;
  const block_key key = in_one_bucket(2);
  if (kvshm_allocate(a, 1, raw(key), nullptr, &h, &status, nullptr)) return 1;
  if (status != KVSHM_ST_ANNOUNCED) return kWrong + 7;
  rival->tell();
  const int rc = rival->wait();
  if (rc) return rc > 0 ? rc : 2;
  write_payload(a, h.id, key);
  return kvshm_register(a, &h, 1, nullptr, KVSHM_ALLOW, nullptr, nullptr) == 1 ? 0 : 3;
}

// What is not to be cached can be found as long as somebody has it: beside an operation that is held
// up with it, that one does; never when nobody does.
int found_unheld(kvshm_arena* a, const block_key& key) {
  kvshm_handle h;
  if (kvshm_acquire(a, key.data(), 0, &h)) return 0;
  const std::uint64_t others = block(a, h.id).holders & ~(std::uint64_t{1} << core(a).slot);
  if (kvshm_drop(a, &h, 1)) return 6;
  return others ? 0 : kWrong + 4;
}

// NO_CACHE is asked for while the publish is under way.
int late_no_cache(kvshm_arena* a) {
  kvshm_handle h;
  const block_key key = key_of(610);
  if (allocate_quiet(a, key, &h)) return 1;
  write_payload(a, h.id, key);
  bool asked = false;
  add_aside([&](const char* step) {
    if (asked || std::strcmp(step, "publish.before") != 0) return;
    asked = true;
    kvshm_set_no_cache(a, h, 1);
  });
  if (kvshm_register(a, &h, 1, nullptr, KVSHM_ALLOW, &h, nullptr) != 1) return 2;
  if (kvshm_drop(a, &h, 1)) return 3;
  return present(a, key) ? kWrong + 3 : 0;
}

int wish_no_cache(kvshm_arena* a) {
  kvshm_handle h;
  const block_key key = key_of(620);
  if (allocate_quiet(a, key, &h)) return 1;
  write_payload(a, h.id, key);
  if (kvshm_set_no_cache(a, h, 1) || kvshm_set_no_cache(a, h, 0)) return 2;
  if (kvshm_set_no_cache(a, h, 1)) return 3;
  if (kvshm_register(a, &h, 1, nullptr, KVSHM_ALLOW, &h, nullptr) != 1) return 4;
  if (kvshm_drop(a, &h, 1)) return 5;
  return found_unheld(a, key);
}

}  // namespace

std::vector<Op> fill_ops() {
  auto keep = std::make_shared<handles_t>(2);
  return {
      {.name = "allocate", .act = [](kvshm_arena* a, Scene&) { return allocate_keyed(a, 3); }},
      {.name = "allocate, evicting",
       .act = [](kvshm_arena* a, Scene&) { return allocate_keyed(a, 8); },
       .setup = touch_and_age,
       .may_go = kAll,
       .goes = kAll},
      {.name = "allocate, with a sketch",
       .act = [](kvshm_arena* a, Scene&) { return allocate_keyed(a, 8); },
       .setup =
           [](Scene& s) {
             touch_and_age(s);
             core(s.a).sb->policy.flags = KVSHM_POLICY_ALL & ~KVSHM_POLICY_QUEUES;
           },
       .may_go = kAll,
       .goes = kAll},
      {.name = "allocate, with queues and a sketch",
       .act = [](kvshm_arena* a, Scene&) { return allocate_keyed(a, 8); },
       .setup =
           [](Scene& s) {
             touch_and_age(s);
             core(s.a).sb->policy.flags = KVSHM_POLICY_ALL;
           },
       .may_go = kAll,
       .goes = kAll},
      {.name = "allocate, falling short",
       .act = [](kvshm_arena* a,
                 Scene&) { return allocate_keyed(a, 11) == KVSHM_ENOSPACE ? 0 : 1; },
       .may_go = kAll},
      {.name = "allocate, waiting",
       .act =
           [](kvshm_arena* a, Scene&) {
             handles_t h(11);
             auto o = sized<kvshm_fill_options>();
             o.timeout_ms = 15;
             const int rc = kvshm_allocate(a, 11, nullptr, &o, h.data(), nullptr, nullptr);
             return rc == -ETIMEDOUT ? 0 : 1;
           },
       .may_go = kAll,
       .repeats = true},
      {.name = "register", .act = [](kvshm_arena* a, Scene&) { return put(a, key_of(600), 0); }},
      {.name = "register below a parent",
       .act =
           [](kvshm_arena* a, Scene& s) {
             kvshm_handle up;
             if (kvshm_acquire(a, s.cached[3].data(), 0, &up)) return 1;
             if (int rc = put(a, key_of(601), KVSHM_ALLOW, KVSHM_QUIET, up)) return rc;
             return -kvshm_drop(a, &up, 1);
           }},
      {.name = "register a duplicate",
       .act = [](kvshm_arena* a,
                 Scene& s) { return put(a, s.held_key, KVSHM_ALLOW, KVSHM_QUIET); }},
      {.name = "register a duplicate of a cached block",
       .act = [](kvshm_arena* a,
                 Scene& s) { return put(a, s.cached[3], KVSHM_ALLOW, KVSHM_QUIET); }},
      {.name = "register, rejected",
       .act = [](kvshm_arena* a,
                 Scene& s) { return put(a, s.cached[1], KVSHM_REJECT, KVSHM_QUIET); }},
      {.name = "register beside a fill",
       .act = [](kvshm_arena* a,
                 Scene& s) { return put(a, s.mine_key, KVSHM_ALLOW, KVSHM_QUIET); }},
      {.name = "register, no cache",
       .act = [](kvshm_arena* a,
                 Scene&) { return put(a, key_of(602), KVSHM_ALLOW, KVSHM_NO_CACHE); }},
      {.name = "register in a full bucket",
       .act = [](kvshm_arena* a, Scene&) { return fill_a_bucket(a); },
       .may_go = kAll,
       .goes = kAll,
       .alone = true},
      {.name = "no cache, while publishing",
       .act = [](kvshm_arena* a, Scene&) { return late_no_cache(a); },
       .alone = true},
      {.name = "no cache, before register",
       .act = [](kvshm_arena* a, Scene&) { return wish_no_cache(a); }},
      {.name = "announce beside a slower one",
       .act = [](kvshm_arena* a, Scene&) { return outrank(a); },
       .prepare = start_rival,
       .setup = [](Scene& s) { make_cached(s.a, in_one_bucket(1)); },
       .alone = true},
      {.name = "join and publish", .act = join_and_fill},
      {.name = "join and leave",
       .act =
           [](kvshm_arena* a, Scene& s) {
             if (kvshm_fill_join(a, s.fill)) return 1;
             return -kvshm_abort(a, &s.fill, 1);
           }},
      {.name = "join twice", .act = join_twice},
      {.name = "join, another life",
       .act =
           [](kvshm_arena* a, Scene& s) {
             kvshm_handle old = s.fill;
             old.seq--;
             return kvshm_fill_join(a, old) == -ENOENT ? 0 : kWrong + 5;
           }},
      {.name = "abort",
       .act = [keep](kvshm_arena* a, Scene&) { return -kvshm_abort(a, keep->data(), 2); },
       .prepare =
           [keep](kvshm_arena* a, Scene&) {
             const keys_t keys = keys_of(700, 2);
             return -kvshm_allocate(a, 2, raw(keys), nullptr, keep->data(), nullptr, nullptr);
           }},
      {.name = "wait for a fill",
       .act = [](kvshm_arena* a,
                 Scene& s) { return kvshm_wait(a, s.fill, 3) == -ETIMEDOUT ? 0 : 1; }},
  };
}

}  // namespace kvshm_sweep
