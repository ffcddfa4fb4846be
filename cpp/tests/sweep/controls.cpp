// SPDX-License-Identifier: Apache-2.0
// Which control is seen by what. Those of the protocol that are not here are caught in the models
// only (tests/model/table.toml), since this code has nothing to break for them: count-then-ledger
// and ledger-then-count (there is no ledger), two reapers on one description (a mutex keeps reaps of
// one process apart), lock file instead of the arena's inode, fork child keeps the ring mapped and
// abort with a transfer in flight (no rings yet).
#include "controls.hpp"

#include <memory>

namespace kvshm_sweep {
namespace {

constexpr auto kQuiet = KVSHM_NO_TOUCH;

// Between a script's parts, in the survivor; also what a child was told when it was forked.
struct Notes {
  kvshm_handle h = {0, KVSHM_NONE, 0}, other = h;
  handles_t fills;
  int rc = -1;
};

std::shared_ptr<Notes> notes() { return std::make_shared<Notes>(); }

// All free blocks, with the one of that id among them: under other keys from then on.
handles_t take_all_free(kvshm_arena* a) {
  handles_t h(std::size_t(stats(a).blocks_free));
  const keys_t keys = keys_of(8000, h.size());
  auto o = sized<kvshm_fill_options>();
  o.flags = KVSHM_NO_EVICT | KVSHM_QUIET | KVSHM_UNCHAINED;
  EXPECT_EQ(kvshm_allocate(a, std::uint32_t(h.size()), raw(keys), &o, h.data(), nullptr, nullptr),
            0);
  return h;
}

int hold_and_drop(kvshm_arena* a, const block_key& key) {
  kvshm_handle h;
  const int rc = kvshm_acquire(a, key.data(), kQuiet, &h);
  if (rc) return rc == -ENOENT ? 0 : 1;
  if (int wrong = right_bytes(a, h.id, key)) return wrong;
  return kvshm_drop(a, &h, 1) ? 2 : 0;
}

// Somebody holds the block between the look at it and the claim.
Script held_before_the_claim() {
  auto n = notes();
  return {
      .first = op_named("evict and clear"),
      .at = "evict.claim",
      .meanwhile =
          [n](Scene& s) { EXPECT_EQ(kvshm_acquire(s.a, s.cached[0].data(), kQuiet, &n->h), 0); },
      .afterwards =
          [n](Scene& s) {
            EXPECT_EQ(block(s.a, n->h.id).seq, n->h.seq);
            EXPECT_EQ(drop(s.a, n->h), 0);
          }};
}

// Somebody joins between the look at the word and the publish.
Script joined_before_the_publish() {
  return {.first = op_named("join and publish"),
          .at = "publish.before",
          .meanwhile = [](Scene& s) { EXPECT_EQ(kvshm_fill_join(s.second(), s.fill), 0); },
          .afterwards = [](Scene& s) { EXPECT_EQ(drop(s.second(), s.fill), 0); }};
}

// Somebody tries to join what is being closed.
Script joined_while_closing() {
  auto n = notes();
  return {.first = op_named("abort"),
          .at = "close.erase",
          .meanwhile =
              [n](Scene& s) {
                const block_key key = key_of(701);
                if (kvshm_acquire(s.second(), key.data(), 0, &n->h) == -KVSHM_EPENDING)
                  n->rc = kvshm_fill_join(s.second(), n->h);
              },
          .afterwards =
              [n](Scene& s) {
                if (n->rc == 0) {
                  EXPECT_EQ(kvshm_abort(s.second(), &n->h, 1), 0) << "joined, and no member";
                }
              }};
}

// Asked for and given back between the last release's look and its step.
Script no_cache_before_the_release() {
  return {.first = op_named("match"),
          .at = "leave.bit",
          .meanwhile =
              [](Scene& s) {
                kvshm_handle h;
                EXPECT_EQ(kvshm_acquire(s.second(), s.cached[3].data(), kQuiet, &h), 0);
                EXPECT_EQ(kvshm_set_no_cache(s.second(), h, 1), 0);
                EXPECT_EQ(drop(s.second(), h), 0);
              },
          .afterwards = [](Scene& s) { EXPECT_FALSE(present(s.a, s.cached[3])); }};
}

// A block is freed between the look at an empty region and the clearing of its summary bit.
Script freed_before_the_summary() {
  return {.first = op_named("allocate, evicting"),
          .at = "free.unsummarize",
          .meanwhile =
              [](Scene& s) {
                EXPECT_EQ(kvshm_abort(s.a, &s.mine, 1), 0);
                s.mine_given_up = true;
              },
          .afterwards = [](Scene& s) { EXPECT_TRUE(summary_whole(s.a)); }};
}

// The fill becomes READY between a member's wish to leave and its step.
Script published_before_the_leave() {
  return {.first = op_named("join and leave"),
          .at = "drop.last",
          .meanwhile =
              [](Scene& s) {
                EXPECT_EQ(kvshm_fill_begin(s.a, s.fill, 1), 0);
                write_half(s.a, s.fill.id, s.fill_key, 1);
                EXPECT_EQ(kvshm_fill_arrive(s.a, s.fill, 1), 0);
                EXPECT_EQ(kvshm_publish(s.a, s.fill), 0);
              },
          .ends_well = true};
}

// The block found by a stale entry is now a duplicate of that very key.
Script reused_as_a_duplicate() {
  auto n = notes();
  Op look{.name = "hold and drop",
          .act = [](kvshm_arena* a, Scene& s) { return hold_and_drop(a, s.cached[2]); }};
  return {.first = look,
          .at = "take.before",
          .meanwhile =
              [n](Scene& s) {
                kvshm_arena* b = s.second();
                const keys_t key = {s.cached[2]};
                kvshm_handle old;
                EXPECT_EQ(kvshm_acquire(b, key[0].data(), kQuiet, &old), 0);
                EXPECT_EQ(drop(b, old), 0);
                EXPECT_EQ(kvshm_evict(b, raw(key), 1), 1);
                n->fills = take_all_free(b);
                for (const bool primary : {true, false})
                  for (auto& f : n->fills)
                    if ((f.id != old.id) == primary && (!primary || !n->h.seq)) {
                      write_payload(b, f.id, key[0]);
                      kvshm_handle& held = primary ? n->h : n->other;
                      EXPECT_EQ(kvshm_register(b, &f, 1, raw(key), KVSHM_ALLOW, &held, nullptr), 1);
                      f.seq = 0;
                    }
              },
          .afterwards =
              [n](Scene& s) {
                for (auto& f : n->fills)
                  if (f.seq) kvshm_abort(s.second(), &f, 1);
                EXPECT_EQ(drop(s.second(), n->other), 0);
                EXPECT_EQ(drop(s.second(), n->h), 0);
              },
          .ends_well = true};
}

// The primary is let go, evicted and reused while somebody upgrades the duplicate.
Script primary_reused() {
  auto n = notes();
  Op upgrade{.name = "upgrade a duplicate",
             .act =
                 [n](kvshm_arena* a, Scene& s) {
                   if (kvshm_upgrade(a, n->h, kQuiet)) return 0;  // a miss
                   const std::uint32_t p = block(a, n->h.id).primary;
                   return std::memcmp(block(a, p).key, s.cached[0].data(), 16) ? kWrong : 0;
                 },
             .setup =
                 [n](Scene& s) {
                   kvshm_arena* b = s.second();
                   auto o = sized<kvshm_fill_options>();
                   o.flags = KVSHM_QUIET;
                   EXPECT_EQ(kvshm_allocate(b, 1, raw(s.cached[0]), &o, &n->h, nullptr, nullptr),
                             0);
                   write_payload(b, n->h.id, s.cached[0]);
                   EXPECT_EQ(kvshm_register(b, &n->h, 1, nullptr, KVSHM_ALLOW, &n->h, nullptr), 1);
                   n->other.id = block(b, n->h.id).primary;
                 }};
  return {.first = upgrade, .at = "upgrade.primary", .meanwhile = [n](Scene& s) {
            kvshm_arena* b = s.second();
            EXPECT_EQ(drop(b, n->h), 0);
            const keys_t key = {s.cached[0]}, another = keys_of(777, 1);
            EXPECT_EQ(kvshm_evict(b, raw(key), 1), 1);
            for (auto& f : take_all_free(b)) {
              if (f.id != n->other.id) {
                EXPECT_EQ(kvshm_abort(b, &f, 1), 0);
                continue;
              }
              write_payload(b, f.id, another[0]);
              EXPECT_EQ(kvshm_register(b, &f, 1, raw(another), KVSHM_ALLOW, &f, nullptr), 1);
              EXPECT_EQ(drop(b, f), 0);
            }
          }};
}

// A fill that a look-up sees ends, and its block gets another key.
Script fill_replaced() {
  auto n = notes();
  Op look{.name = "find a fill and join", .act = [](kvshm_arena* a, Scene& s) {
            kvshm_handle h;
            if (kvshm_acquire(a, s.mine_key.data(), kQuiet, &h) != -KVSHM_EPENDING) return 0;
            if (kvshm_fill_join(a, h)) return 0;
            return std::memcmp(block(a, h.id).key, s.mine_key.data(), 16) ? kWrong : 0;
          }};
  return {.first = look,
          .at = "lookup.pending",
          .meanwhile =
              [n](Scene& s) {
                EXPECT_EQ(kvshm_abort(s.a, &s.mine, 1), 0);
                s.mine_given_up = true;
                n->fills = take_all_free(s.second());
              },
          .afterwards = [n](Scene& s) { EXPECT_EQ(abort_fills(s.second(), n->fills), 0); }};
}

// The slot that is being reaped is claimed by somebody who holds something.
Script claimed_while_reaped() {
  auto n = notes();
  return {.first = op_named("reap"),
          .at = "reap.locked",
          .meanwhile =
              [n](Scene& s) {
                EXPECT_EQ(kvshm_acquire(s.second(), s.held_key.data(), kQuiet, &n->h), 0);
              },
          .afterwards = [n](Scene& s) { EXPECT_EQ(drop(s.second(), n->h), 0); }};
}

// Nothing is free; who frees a block dies between its bit and the summary's.
Op dies_before_the_summary() {
  auto n = notes();
  return {.name = "evict, nothing else free",
          .act = [](kvshm_arena* a,
                    Scene& s) { return kvshm_evict(a, raw(s.cached) + 3, 1) == 1 ? 0 : 1; },
          .setup =
              [n](Scene& s) {
                n->fills = take_all_free(s.a);
                kvshm_handle h;
                auto o = sized<kvshm_fill_options>();
                o.flags = KVSHM_NO_EVICT;
                EXPECT_EQ(kvshm_allocate(s.a, 1, nullptr, &o, &h, nullptr, nullptr),
                          -KVSHM_ENOSPACE);
              },
          .after =
              [n](kvshm_arena* a) {
                EXPECT_TRUE(summary_whole(a));
                return -abort_fills(a, n->fills);
              },
          .may_go = 8,
          .goes = 8,
          .alone = true};
}

}  // namespace

std::vector<Op> control_ops() { return {dies_before_the_summary()}; }

std::vector<Control> controls() {
  return {
      {.name = "two_step_evict", .scripts = {held_before_the_claim()}},
      {.name = "publish_by_store", .scripts = {joined_before_the_publish()}},
      {.name = "filling_to_free", .scripts = {joined_while_closing()}},
      {.name = "last_unclosed", .op = "register a duplicate"},
      {.name = "no_cache_beside", .scripts = {no_cache_before_the_release()}},
      {.name = "entries_early", .op = "allocate, falling short"},
      {.name = "abort_leaves_entry", .op = "abort"},
      {.name = "no_second_look", .scripts = {freed_before_the_summary()}},
      {.name = "join_any_life", .op = "join, another life"},
      {.name = "leave_insists", .scripts = {published_before_the_leave()}},
      {.name = "fill_uncounted", .op = "join twice"},
      {.name = "slice_without_begin", .op = "join and publish"},
      {.name = "parts_unchecked", .op = "join and leave"},
      {.name = "no_tentative",
       .pairs = {{&op_named("register"), &op_named("register"), 0, "insert.commit"}}},
      {.name = "overwrites_evicting",
       .pairs = {{&op_named("allocate, falling short"),
                  &op_named("register a duplicate of a cached block"), 0, "evict.claimed"}}},
      {.name = "no_key_check", .op = "acquire what only looks alike"},
      {.name = "takes_duplicate", .scripts = {reused_as_a_duplicate()}},
      {.name = "primary_unchecked", .scripts = {primary_reused()}},
      {.name = "key_not_zeroed", .op = "abort"},
      {.name = "key_before_seq", .scripts = {fill_replaced()}},
      {.name = "reap_unlocked", .scripts = {claimed_while_reaped()}},
      {.name = "region_late", .op = "match"},
      {.name = "scrub_frees_shared", .op = "join and leave"},
      {.name = "scrub_leaves_entries", .op = "allocate"},
      {.name = "tentative_left", .op = "reap"},
      {.name = "last_bit_cleared", .op = "register a duplicate"},
      {.name = "device_ignored", .op = "reap beside devices"},
      {.name = "hints_not_scrubbed", .op = "allocate"},
      {.name = "summary_not_scrubbed", .op = "evict, nothing else free"},
  };
}

}  // namespace kvshm_sweep
