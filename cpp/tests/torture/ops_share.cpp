// SPDX-License-Identifier: Apache-2.0
// Fills of several slices, written by several processes.
#include <algorithm>
#include <cerrno>

#include "ops.hpp"
#include "payload.hpp"

namespace torture {
namespace {

// One slice; false: nothing is left to be written.
bool write_one(Hand& w, Fill& f) {
  for (std::uint32_t part = 0; part < f.parts; part++) {
    if (f.tried >> part & 1) continue;
    f.tried |= 1u << part;
    const int rc = kvshm_fill_begin(w.a, f.h, part);
    w.note(part, f.h, rc);
    // ENOTMINE: another member has published it; EINVAL: it has fewer slices than we guessed
    if (!w.expect(rc, {KVSHM_EPART, KVSHM_ENOTMINE, EINVAL}, "begin")) continue;
    w.transfer(f, part);
    w.expect(kvshm_fill_arrive(w.a, f.h, part), {}, "arrive of a slice that I began");
    return true;
  }
  return false;
}

// Any block: perhaps one that is being filled, of which nobody has been told yet.
void join_any(Hand& w) {
  Fill f;
  f.guessed = true;
  f.h.id = w.rng.below(w.shape.blocks);
  kvshm_handle_of(w.a, f.h.id, &f.h);
  const int rc = kvshm_fill_join(w.a, f.h);
  w.note(2, f.h, rc);
  if (!w.expect(rc, {ENOENT}, "join of any block")) return;
  w.tally(k_joined);
  w.fills.push_back(f);
}

// Held by now, or not to be had: true.
bool finish(Hand& w, Fill f) {
  kvshm_handle out = f.h;
  std::int64_t rc;
  if (f.mine) {
    std::uint8_t result = 0;
    rc = kvshm_register(w.a, &f.h, 1, reinterpret_cast<const kvshm_key*>(&f.key),
                        w.rng.percent(50) ? KVSHM_ALLOW : KVSHM_REJECT, &out, &result);
    w.note(result, f.h, rc);
    if (rc >= 0 && result == KVSHM_ST_DUPLICATE) w.tally(k_duplicates_seen);
  } else {
    rc = kvshm_publish(w.a, f.h);
    w.note(100, f.h, rc);
  }
  if (rc == -KVSHM_EPART || (!f.mine && rc == -KVSHM_ESTATE)) return false;
  if (!w.expect(rc, {}, f.mine ? "register of a shared fill" : "publish")) return true;
  w.tally(k_shared_published);
  if (f.guessed) {
    kvshm_block_info b = KVSHM_BLOCK_INFO_INIT;
    kvshm_get_block(w.a, f.h.id, &b);
    std::copy(b.key, b.key + f.key.size(), f.key.begin());
    if (!is_chain_key(w.shape, f.key)) {  // a part of an object: its bytes are of another kind
      w.expect(kvshm_drop(w.a, &f.h, 1), {}, "drop of an object's block");
      return true;
    }
  }
  w.check(out, f.key, "shared fill");
  w.remember(w.past, out, f.key);
  w.held.push_back({out, f.key});
  return true;
}

}  // namespace

void do_share(Hand& w) {
  if (!w.room()) return;
  kvshm_fill_options o = KVSHM_FILL_OPTIONS_INIT;
  o.parts = 4;
  if (w.rng.percent(20)) o.flags = KVSHM_NO_CACHE;
  Fill f;
  f.key = w.some_key();
  f.parts = o.parts;
  f.mine = true;
  std::uint8_t status = 0;
  const int rc = kvshm_allocate(w.a, 1, reinterpret_cast<const kvshm_key*>(&f.key), &o, &f.h,
                                &status, nullptr);
  w.note(status, f.h, rc);
  if (!w.expect(rc, {KVSHM_ENOSPACE}, "allocate of a shared fill")) return;
  w.fills.push_back(f);
  if (w.rng.percent(50)) do_advance(w);
}

void do_join(Hand& w) {
  if (!w.room()) return;
  if (w.rng.percent(25)) return join_any(w);
  if (w.pending.empty()) return do_acquire(w);
  const std::uint32_t i = w.rng.below(std::uint32_t(w.pending.size()));
  const Seen s = w.pending[i];
  w.pending.erase(w.pending.begin() + i);
  const int rc = kvshm_fill_join(w.a, s.h);
  w.note(0, s.h, rc);
  if (!w.expect(rc, {ENOENT}, "join")) return;
  w.tally(k_joined);
  kvshm_block_info b = KVSHM_BLOCK_INFO_INIT;
  kvshm_get_block(w.a, s.h.id, &b);
  Fill f;
  f.h = s.h;
  f.key = s.key;
  f.parts = b.parts ? b.parts : 1;
  w.fills.push_back(f);
}

void do_advance(Hand& w) {
  std::vector<std::uint32_t> which;
  for (std::uint32_t i = 0; i < w.fills.size(); i++)
    if (w.fills[i].parts > 1 || !w.fills[i].mine) which.push_back(i);
  if (which.empty()) return do_share(w);
  const std::uint32_t i = which[w.rng.below(std::uint32_t(which.size()))];
  // Of one slice: its allocator writes it, without begin; a member only waits for it.
  if (w.fills[i].parts > 1 && write_one(w, w.fills[i]) && w.rng.percent(50)) return;
  Fill f = w.fills[i];
  if (finish(w, f)) {
    w.fills.erase(w.fills.begin() + i);
    return;
  }
  w.fills[i].looks++;
  if (w.fills[i].looks < 4) return;
  w.fills.erase(w.fills.begin() + i);  // somebody died in a slice, or never came back
  const int rc = kvshm_abort(w.a, &f.h, 1);
  w.note(1, f.h, rc);
  w.expect(rc, {}, "leaving a shared fill");
}

void do_wait(Hand& w) {
  if (w.pending.empty()) return;
  const Seen& s = w.pending[w.rng.below(std::uint32_t(w.pending.size()))];
  w.expect(kvshm_wait(w.a, s.h, w.rng.between(1, 6)), {ENOENT, ETIMEDOUT}, "wait");
}

}  // namespace torture
