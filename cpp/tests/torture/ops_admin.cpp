// SPDX-License-Identifier: Apache-2.0
// What looks after an arena, while it is in use.
#include <cerrno>

#include "audit.hpp"
#include "ops.hpp"

namespace torture {

void do_evict(Hand& w) {
  block_key keys[3];
  for (auto& k : keys) k = w.some_key();
  const std::int64_t n = kvshm_evict(w.a, reinterpret_cast<const kvshm_key*>(keys), 3);
  if (w.expect(n, {}, "evict")) w.tally(k_evicted, std::uint64_t(n));
}

void do_clear(Hand& w) {
  if (w.shape.blocks < 64 || w.rng.percent(5)) w.expect(kvshm_clear(w.a), {}, "clear");
}

void do_reset(Hand& w) {
  if (w.shape.blocks < 64 || w.rng.percent(5))
    w.expect(kvshm_reset_inactive(w.a, nullptr, nullptr), {EBUSY}, "reset");
}

void do_reap(Hand& w) {
  kvshm_reap_report r = KVSHM_REAP_REPORT_INIT;
  w.expect(kvshm_reap(w.a, w.rng.percent(50) ? &r : nullptr), {}, "reap");
}

void do_marks(Hand& w) {
  kvshm_handle h[8];
  std::uint32_t n = 0;
  for (const Seen& s : w.past)
    if (n < 8) h[n++] = s.h;
  if (n) w.expect(kvshm_mark_victims(w.a, h, n), {}, "mark_victims");
}

void do_policy(Hand& w) {
  kvshm_policy p = KVSHM_POLICY_INIT;
  if (!w.expect(kvshm_get_policy(w.a, &p), {}, "get_policy")) return;
  p.flags = w.rng.below(KVSHM_POLICY_ALL + 1);
  p.young = w.rng.below(2) ? w.rng.below(100) : 0;
  for (auto& r : p.rank) r = w.rng.below(4);
  p.sample = w.rng.between(1, 64);
  p.age_period = w.rng.below(4);
  w.expect(kvshm_set_policy(w.a, &p), {EAGAIN, EBUSY}, "set_policy");
}

void do_look(Hand& w) {
  kvshm_stats s = {};
  s.size = sizeof s;
  if (w.expect(kvshm_get_stats(w.a, &s), {}, "stats") && s.blocks_total != w.shape.blocks)
    violation(w.shared, "the arena has %llu blocks", (unsigned long long)s.blocks_total);
  w.expect(kvshm_is_valid(w.a, nullptr, nullptr), {}, "is_valid");  // transient reports, no crash
  kvshm_process p = KVSHM_PROCESS_INIT;
  w.expect(kvshm_get_process(w.a, w.rng.below(KVSHM_SLOTS), &p), {}, "get_process");
}

void do_audit(Hand& w) {
  std::uint64_t blocks = 0;
  const kvshm_block_record* table = kvshm_block_table(w.a, &blocks);
  if (!table) return violation(w.shared, "no table of blocks");
  find_two_primaries(w.shared, table, blocks, w.rng.below(std::uint32_t(blocks)),
                     blocks < 1000 ? blocks : 16);
  w.tally(k_audits);
}

void do_reattach(Hand& w) {
  if (w.record.plan.threads == 1) w.reopen();
}

}  // namespace torture
