// SPDX-License-Identifier: Apache-2.0
// Allocating, filling alone, registering, giving up.
#include <cerrno>
#include <set>

#include "ops.hpp"
#include "payload.hpp"

namespace torture {
namespace {

kvshm_fill_options fill_options(Hand& w) {
  kvshm_fill_options o = KVSHM_FILL_OPTIONS_INIT;
  if (w.rng.percent(15)) o.flags |= KVSHM_NO_CACHE;
  if (w.rng.percent(15)) o.flags |= KVSHM_NO_EVICT;
  if (w.rng.percent(10)) o.flags |= KVSHM_UNCHAINED;
  if (w.rng.percent(15)) o.timeout_ms = w.rng.between(1, 4);
  o.priority = w.rng.between(1, 99);
  if (!w.held.empty() && w.rng.percent(60))
    o.parent = w.held[w.rng.below(std::uint32_t(w.held.size()))].h;
  return o;
}

// n neighbours of a chain are asked for; what was allocated is in w.fills.
bool allocate(Hand& w, std::uint32_t n, kvshm_fill_options o, bool keys) {
  std::vector<block_key> k(n);
  std::vector<kvshm_handle> h(n);
  std::vector<std::uint8_t> status(n);
  const std::uint32_t c = w.some_chain(), first = w.some_place();
  for (std::uint32_t i = 0; i < n; i++)  // across chains where n is long
    k[i] = chain_key((c + (first + i) / w.shape.length) % w.shape.chains,
                     (first + i) % w.shape.length);
  kvshm_key evicted_keys[4];
  kvshm_evicted evicted = {sizeof evicted, evicted_keys, 4, 0};
  const int rc =
      kvshm_allocate(w.a, n, keys ? reinterpret_cast<const kvshm_key*>(k.data()) : nullptr, &o,
                     h.data(), status.data(), w.rng.percent(50) ? &evicted : nullptr);
  w.note(n, rc ? kvshm_handle{} : h[0], rc);
  if (rc == -KVSHM_ENOSPACE || rc == -ETIMEDOUT) w.tally(k_refused);
  if (!w.expect(rc, {KVSHM_ENOSPACE, ETIMEDOUT}, "allocate")) return false;
  std::set<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < n; i++) {
    if (!ids.insert(h[i].id).second) violation(w.shared, "block %u allocated twice", h[i].id);
    Fill f;
    f.h = h[i];
    f.key = k[i];
    f.parts = o.parts ? o.parts : 1;
    f.mine = true;
    w.fills.push_back(f);
  }
  return true;
}

void finish(Hand& w, Fill f) {
  if (w.rng.percent(50)) {  // else begin and arrive are implied
    w.expect(kvshm_fill_begin(w.a, f.h, 0), {}, "begin of a fill of one slice");
    w.transfer(f, 0);
    w.expect(kvshm_fill_arrive(w.a, f.h, 0), {}, "arrive of a fill of one slice");
  } else {
    write_slice(kvshm_block_data(w.a, f.h.id), w.shape.block_bytes, f.key, f.h.seq, 0, 1);
  }
  const int policy = w.rng.percent(60) ? KVSHM_ALLOW : KVSHM_REJECT;
  kvshm_handle out = {0, KVSHM_NONE, 0};
  std::uint8_t result = 0;
  const std::int64_t n = kvshm_register(w.a, &f.h, 1, reinterpret_cast<const kvshm_key*>(&f.key),
                                        policy, &out, &result);
  w.note(result, out, n);
  if (!w.expect(n, {}, "register")) return;
  w.tally(k_published);
  if (result == KVSHM_ST_DUPLICATE) w.tally(k_duplicates_seen);
  w.check(out, f.key, "registered");
  w.remember(w.past, out, f.key);
  w.held.push_back({out, f.key});
  if (result != KVSHM_ST_PRIMARY) return;
  // Held and in the index: whoever asks for the key must get this block.
  kvshm_handle found = {0, KVSHM_NONE, 0};
  const int rc = kvshm_acquire(w.a, f.key.data(), KVSHM_NO_TOUCH, &found);
  if (rc || found.id != out.id || found.seq != out.seq)
    violation(w.shared, "block %u, life %llu, is held as its key's primary, a look-up says %d, %u",
              out.id, (unsigned long long)out.seq, rc, found.id);
  if (rc == 0) w.expect(kvshm_drop(w.a, &found, 1), {}, "drop of a found block");
}

}  // namespace

void do_allocate(Hand& w) {
  if (const std::uint32_t room = w.room())
    allocate(w, w.rng.between(1, room < 4 ? room : 4), fill_options(w), true);
}

void do_allocate_quiet(Hand& w) {
  if (!w.room()) return;
  kvshm_fill_options o = fill_options(w);
  o.flags |= KVSHM_QUIET;
  allocate(w, 1, o, true);
}

void do_allocate_keyless(Hand& w) {
  if (w.room()) allocate(w, 1, fill_options(w), false);
}

void do_all_or_nothing(Hand& w) {
  const std::uint32_t n = w.rng.between((w.shape.blocks + 2) / 3, w.shape.blocks);
  const std::size_t before = w.fills.size();
  kvshm_fill_options o = fill_options(w);
  if (!allocate(w, n, o, w.rng.percent(50))) return;
  w.tally(k_all_or_nothing);
  std::vector<Fill> all(w.fills.begin() + std::ptrdiff_t(before), w.fills.end());
  w.fills.resize(before);
  std::vector<kvshm_handle> h;
  const bool fill = w.shape.blocks >= 64 && w.rng.percent(70);
  for (const Fill& f : all) {
    if (!fill || h.size() > 200 || w.rng.percent(10)) {
      h.push_back(f.h);
      continue;
    }
    finish(w, f);
    do_drop(w);
  }
  w.expect(kvshm_abort(w.a, h.data(), std::uint32_t(h.size())), {}, "abort of all");
}

void do_write_and_register(Hand& w) {
  for (std::size_t i = 0; i < w.fills.size(); i++) {
    if (!w.fills[i].mine || w.fills[i].parts != 1) continue;
    const Fill f = w.fills[i];
    w.fills.erase(w.fills.begin() + std::ptrdiff_t(i));
    return finish(w, f);
  }
  if (w.fills.size() > 3) do_abort_fill(w);
}

void do_abort_fill(Hand& w) {
  if (w.fills.empty()) return;
  const std::uint32_t i = w.rng.below(std::uint32_t(w.fills.size()));
  const Fill f = w.fills[i];
  w.fills.erase(w.fills.begin() + i);
  const int rc = kvshm_abort(w.a, &f.h, 1);
  w.note(0, f.h, rc);
  w.expect(rc, {}, "abort");
}

}  // namespace torture
