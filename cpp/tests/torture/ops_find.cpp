// SPDX-License-Identifier: Apache-2.0
// Finding and holding.
#include <cerrno>

#include "ops.hpp"

namespace torture {
namespace {

constexpr std::uint32_t kMost = 24;

kvshm_handle handle_of(Hand& w, std::uint32_t id) {
  kvshm_handle h = {0, KVSHM_NONE, 0};
  kvshm_handle_of(w.a, id, &h);
  return h;
}

const kvshm_key* raw(const block_key* k) { return reinterpret_cast<const kvshm_key*>(k); }

// Found blocks are checked at once, and kept for a while, or not.
void keep_lease(Hand& w, kvshm_lease lease, std::vector<Held> blocks) {
  for (const Held& b : blocks) {
    w.check(b.h, b.key, "found");
    w.remember(w.past, b.h, b.key);
  }
  if (!lease) return;
  if (w.room() >= blocks.size() && w.rng.percent(70)) {
    w.leases.push_back({lease, std::move(blocks)});
    return;
  }
  w.expect(kvshm_release(w.a, lease), {}, "release");
}

std::uint32_t flags(Hand& w) { return w.rng.percent(30) ? KVSHM_NO_TOUCH : 0; }

}  // namespace

void do_match(Hand& w) {
  block_key keys[kMost];
  std::uint32_t ids[kMost];
  const std::uint32_t n = w.shape.length < kMost ? w.shape.length : kMost, c = w.some_chain();
  for (std::uint32_t i = 0; i < n; i++) keys[i] = chain_key(c, i);
  kvshm_lease lease = 0;
  kvshm_handle pending = {0, KVSHM_NONE, 0};
  const std::int64_t hits =
      kvshm_match_with(w.a, raw(keys), n, flags(w), w.rng.next(), ids, &lease, &pending);
  if (!w.expect(hits, {}, "match")) return;
  std::vector<Held> found;
  for (std::int64_t i = 0; i < hits; i++) found.push_back({handle_of(w, ids[i]), keys[i]});
  if (hits < n) w.remember(w.pending, pending, keys[hits]);
  keep_lease(w, lease, std::move(found));
}

void do_match_scattered(Hand& w) {
  block_key keys[kMost];
  std::uint32_t ids[kMost];
  const std::uint32_t n = w.rng.between(1, kMost);
  for (auto& k : keys) k = w.some_key();
  kvshm_lease lease = 0;
  const std::int64_t hits = kvshm_match_scattered(w.a, raw(keys), n, flags(w), 1, ids, &lease);
  if (!w.expect(hits, {}, "match_scattered")) return;
  std::vector<Held> found;
  for (std::uint32_t i = 0; i < n; i++)
    if (ids[i] != KVSHM_NONE) found.push_back({handle_of(w, ids[i]), keys[i]});
  if (std::int64_t(found.size()) != hits) violation(w.shared, "scattered: hits are not counted");
  keep_lease(w, lease, std::move(found));
}

void do_scan(Hand& w) {
  block_key keys[kMost];
  std::uint32_t ids[kMost], which[kMost];
  const std::uint32_t n = w.rng.between(1, kMost);
  for (auto& k : keys) k = w.some_key();
  kvshm_lease lease = 0;
  const std::int64_t hits = kvshm_scan(w.a, raw(keys), n, flags(w), 2, ids, which, &lease);
  if (!w.expect(hits, {}, "scan")) return;
  std::vector<Held> found;
  for (std::int64_t i = 0; i < hits; i++) found.push_back({handle_of(w, ids[i]), keys[which[i]]});
  keep_lease(w, lease, std::move(found));
}

void do_presence(Hand& w) {
  block_key keys[kMost];
  std::uint8_t mask[kMost];
  for (auto& k : keys) k = w.some_key();
  w.expect(kvshm_presence(w.a, raw(keys), kMost, mask), {}, "presence");
}

void do_acquire(Hand& w) {
  const block_key key = w.some_key();
  kvshm_handle h = {0, KVSHM_NONE, 0};
  const int rc = kvshm_acquire(w.a, key.data(), flags(w), &h);
  w.note(1, h, rc);
  if (rc == -KVSHM_EPENDING) w.remember(w.pending, h, key);
  if (!w.expect(rc, {ENOENT, KVSHM_EPENDING}, "acquire")) return;
  w.check(h, key, "acquired");
  w.remember(w.past, h, key);
  w.held.push_back({h, key});
  if (!w.room()) do_drop(w);
}

void do_upgrade(Hand& w) {
  const auto& from = w.rng.percent(70) || w.pending.empty() ? w.past : w.pending;
  if (from.empty()) return;
  const Seen s = from[w.rng.below(std::uint32_t(from.size()))];
  const int rc = kvshm_upgrade(w.a, s.h, flags(w));
  w.note(2, s.h, rc);
  if (!w.expect(rc, {ENOENT, KVSHM_EPENDING}, "upgrade")) return;
  w.check(s.h, s.key, "upgraded");
  w.held.push_back({s.h, s.key});
  if (!w.room()) do_drop(w);
}

void do_pin(Hand& w) {
  if (w.past.size() < 2) return;
  kvshm_handle h[3];
  std::vector<Held> pinned;
  const std::uint32_t n = w.rng.between(1, 3);
  for (std::uint32_t i = 0; i < n; i++) {
    const Seen& s = w.past[w.rng.below(std::uint32_t(w.past.size()))];
    h[i] = s.h;
    pinned.push_back({s.h, s.key});
  }
  kvshm_lease lease = 0;
  const int rc = kvshm_pin(w.a, h, n, 3, &lease);
  if (w.expect(rc, {ENOENT, KVSHM_EPENDING}, "pin")) keep_lease(w, lease, std::move(pinned));
}

}  // namespace torture
