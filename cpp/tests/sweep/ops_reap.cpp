// SPDX-License-Identifier: Apache-2.0
// Reaping, while the reaper may die itself.
#include <fcntl.h>
#include <signal.h>

#include "arena/lock.hpp"
#include "arena/object.hpp"
#include "remains.hpp"
#include "scene.hpp"

namespace kvshm_sweep {
namespace {

// Dies in the middle of an eviction, holding and filling this and that.
int die_with_much(kvshm_arena* a, Scene& s) {
  if (int rc = hold_and_fill(a, s)) return rc;
  if (int rc = hold_a_duplicate(a, s)) return rc;
  follow({.die_at_name = "close.unkeyed"});
  kvshm_evict(a, raw(s.cached[3]), 1);
  return 1;
}

int die_with_a_hint(kvshm_arena* a) {
  follow({.die_at_name = "alloc.unmapped"});
  kvshm_handle h;
  kvshm_allocate(a, 1, nullptr, nullptr, &h, nullptr, nullptr);
  return 1;
}

// Dies with a tentative entry, after somebody else has joined the fill.
int die_announcing(kvshm_arena* a, Wire& wire) {
  follow({.die_at_name = "insert.commit", .pause_at_name = "insert.tentative", .pause = [&] {
            wire.tell();
            wire.listen();
          }});
  const block_key key = key_of(910);
  kvshm_handle h;
  kvshm_allocate(a, 1, raw(key), nullptr, &h, nullptr, nullptr);
  return 1;
}

// The block that is being filled under the key: no look-up finds a tentative entry.
kvshm_handle filling_under(kvshm_arena* a, const block_key& key) {
  for (std::uint32_t id = 0; id < kBlocks; id++) {
    const kvshm_block_info b = block(a, id);
    if (b.state == KVSHM_FILLING && std::memcmp(b.key, key.data(), 16) == 0) return {b.seq, id, 0};
  }
  return {0, KVSHM_NONE, 0};
}

int reap(kvshm_arena* a, Scene&) {
  if (int rc = kvshm_reap(a, nullptr)) return -rc;
  return any_tentative(a) ? kWrong + 34 : 0;  // nobody inserts, and this process only joined
}

// Devices of the dead may still write: their fills stay.
int reap_beside_devices(kvshm_arena* a, Scene&) {
  const kvshm_handle left = filling_under(a, key_of(900));
  if (!left.seq) return 1;
  auto report = sized<kvshm_reap_report>();
  if (kvshm_reap(a, &report)) return 2;
  const kvshm_block_info b = block(a, left.id);
  if (b.seq != left.seq || b.state != KVSHM_FILLING) return kWrong + 30;
  return report.slots_draining ? 0 : kWrong + 31;
}

// As long as this process lives, the device bytes of the dead are held.
int hold_device_bytes(kvshm_arena* a, Scene&) {
  kvshm::Arena& c = core(a);
  static kvshm::File f;
  f = kvshm::open_object(c, O_RDWR);
  for (unsigned s = c.slot + 1; s < c.slot + 4; s++) {
    if (kvshm::lock_byte(f.get(), false, kvshm::device_byte(s))) return 1;
    c.slots[s].device_memory = 1;
  }
  return 0;
}

}  // namespace

void leave_remains(Scene& s, kvshm_arena* joiner) {
  // All attach before one dies: the next would clear away its remains.
  auto attached = [&](auto dies) {
    return Child([&s, dies](Wire& wire) {
      kvshm_arena* a = attach(s.pool.name);
      CHILD_CHECK(a);
      wire.tell();
      wire.listen();
      return dies(a, wire);
    });
  };
  Child much = attached([&](kvshm_arena* a, Wire&) { return die_with_much(a, s); });
  Child hint = attached([](kvshm_arena* a, Wire&) { return die_with_a_hint(a); });
  Child announcing = attached([](kvshm_arena* a, Wire& wire) { return die_announcing(a, wire); });
  for (Child* c : {&much, &hint, &announcing}) EXPECT_TRUE(c->listen());
  for (Child* c : {&much, &hint}) {
    c->tell();
    EXPECT_EQ(c->wait(), -SIGKILL);
  }
  if (!joiner) return;
  announcing.tell();
  EXPECT_TRUE(announcing.listen());
  EXPECT_EQ(kvshm_fill_join(joiner, filling_under(joiner, key_of(910))), 0);
  announcing.tell();
  EXPECT_EQ(announcing.wait(), -SIGKILL);
}

std::vector<Op> reap_ops() {
  return {
      {.name = "reap",
       .act = reap,
       .prepare =
           [](kvshm_arena* a, Scene& s) {
             leave_remains(s, a);
             return failures().empty() ? 0 : kWrong + 32;
           },
       .may_go = 8,
       .goes = 8,
       .alone = true},
      {.name = "reap beside devices",
       .act = reap_beside_devices,
       .prepare =
           [](kvshm_arena* a, Scene& s) {
             leave_remains(s, nullptr);
             if (!failures().empty()) return kWrong + 33;
             return hold_device_bytes(a, s);
           },
       .may_go = 8,
       .goes = 8,
       .alone = true},
  };
}

}  // namespace kvshm_sweep
