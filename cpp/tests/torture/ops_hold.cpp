// SPDX-License-Identifier: Apache-2.0
// Giving holds back, and what a holder may change.
#include <cerrno>

#include "ops.hpp"

namespace torture {

void do_drop(Hand& w) {
  if (w.held.empty()) return;
  kvshm_handle h[4];
  std::uint32_t n = 0;
  const std::uint32_t want = w.rng.between(1, 4);
  while (n < want && !w.held.empty()) {
    const Held x = w.take(w.held);
    w.check(x.h, x.key, "before the drop");
    h[n++] = x.h;
  }
  const int rc = kvshm_drop(w.a, h, n);
  w.note(n, h[0], rc);
  w.expect(rc, {}, "drop");
}

void do_release(Hand& w) {
  if (w.leases.empty()) return;
  const std::uint32_t i = w.rng.below(std::uint32_t(w.leases.size()));
  Leased l = std::move(w.leases[i]);
  w.leases.erase(w.leases.begin() + i);
  for (const Held& b : l.blocks) w.check(b.h, b.key, "before the release");
  w.expect(kvshm_release(w.a, l.lease), {}, "release");
  if (kvshm_release(w.a, l.lease) != -EBADF) violation(w.shared, "a lease was released twice");
}

void do_trim(Hand& w) {
  if (w.leases.empty()) return;
  Leased& l = w.leases[w.rng.below(std::uint32_t(w.leases.size()))];
  const std::uint32_t keep = w.rng.between(1, std::uint32_t(l.blocks.size()));
  if (!w.expect(kvshm_lease_trim(w.a, l.lease, keep), {}, "trim")) return;
  l.blocks.resize(keep);
  for (const Held& b : l.blocks) w.check(b.h, b.key, "after the trim");
}

void do_lease_make(Hand& w) {
  if (w.held.size() < 2) return;
  Leased l;
  kvshm_handle h[2];
  for (auto& x : h) {
    l.blocks.push_back(w.take(w.held));
    x = l.blocks.back().h;
  }
  if (w.expect(kvshm_lease_make(w.a, h, 2, 4, &l.lease), {}, "lease_make"))
    w.leases.push_back(std::move(l));
}

void do_no_cache(Hand& w) {
  if (!w.fills.empty() && w.rng.percent(40)) {
    const Fill& f = w.fills[w.rng.below(std::uint32_t(w.fills.size()))];
    w.expect(kvshm_set_no_cache(w.a, f.h, w.rng.percent(80)), {}, "no_cache of a fill");
    return;
  }
  if (w.held.empty()) return;
  const Held& x = w.held[w.rng.below(std::uint32_t(w.held.size()))];
  w.expect(kvshm_set_no_cache(w.a, x.h, w.rng.percent(50)), {}, "no_cache");
}

void do_priority(Hand& w) {
  if (w.held.empty()) return;
  const Held& x = w.held[w.rng.below(std::uint32_t(w.held.size()))];
  // 100 is never evicted: seldom, or the arena fills up with them.
  const std::uint32_t p = w.rng.percent(10) ? 100 : w.rng.below(100);
  w.expect(kvshm_set_priority(w.a, x.h, p), {}, "priority");
}

}  // namespace torture
