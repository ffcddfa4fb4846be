#include <errno.h>

#include <cstring>

#include "arena/slots.hpp"
#include "blocks/counts.hpp"
#include "blocks/deadlines.hpp"
#include "blocks/sweep.hpp"
#include "capi/call.hpp"
#include "index/index.hpp"

using namespace kvshm;

namespace {

std::uint64_t ms_to(std::uint32_t deadline) {
  const auto left = std::int32_t(deadline - tenths());
  return left > 0 ? std::uint64_t(left) * 100 : 0;
}

}  // namespace

extern "C" {

int64_t kvshm_evict(kvshm_arena* h, const kvshm_key* keys, uint32_t n) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (n && !keys) return -EINVAL;
  int64_t gone = 0;
  for (uint32_t i = 0; i < n; i++) gone += evict_key(*call, Key::load(keys[i]));
  return gone;
}

int64_t kvshm_clear(kvshm_arena* h) {
  Call call(h);
  if (call.rc()) return call.rc();
  return int64_t(evict_all(*call));
}

int kvshm_reset_inactive(kvshm_arena* h, uint64_t* expected, uint64_t* actual) {
  Call call(h);
  if (call.rc()) return call.rc();
  evict_all(*call);
  kvshm_stats s{};
  count_blocks(*call, &s);
  if (expected) *expected = s.blocks_total;
  if (actual) *actual = s.blocks_free;
  if (s.blocks_free == s.blocks_total) return 0;
  return fail(-EBUSY,
              "reset: %llu blocks expected to be free, %llu are; the rest is held or filling",
              (unsigned long long)s.blocks_total, (unsigned long long)s.blocks_free);
}

int kvshm_space_epoch(kvshm_arena* h, uint32_t* out) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (!out) return -EINVAL;
  // pairs with the release of a bump: what was done before it is seen by who keys under its epoch
  *out = call->sb->space_epoch.load(std::memory_order_acquire);
  return 0;
}

int64_t kvshm_bump_epoch(kvshm_arena* h) {
  Call call(h);
  if (call.rc()) return call.rc();
  return std::uint32_t(call->sb->space_epoch.fetch_add(1, std::memory_order_acq_rel) + 1);
}

int kvshm_reap(kvshm_arena* h, kvshm_reap_report* report) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (report) {
    if (report->size < sizeof *report) return -EINVAL;
    clear_sized(report);
  }
  return reap_dead(*call, report);
}

int kvshm_tick(kvshm_arena* h) {
  const int rc = kvshm_reap(h, nullptr);
  if (rc < 0) return rc;
  const std::int64_t stepped = kvshm_step_policy(h);
  return stepped < 0 ? int(stepped) : rc;
}

#define KVSHM_ADD(name, text) \
  out->name += a.slots[s].stats[kStat_##name].load(std::memory_order_relaxed);
int kvshm_get_stats(kvshm_arena* h, kvshm_stats* out) {
  if (int rc = check_size(out)) return rc;
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  const Arena& a = *call;
  clear_sized(out);
  count_blocks(a, out);
  for (unsigned s = 0; s < kSlots; s++) {
    KVSHM_COUNTER_FIELDS(KVSHM_ADD)
  }
  // Those had no slot.
  out->foreign_attaches_total += a.sb->foreign.count.load(std::memory_order_relaxed);
  return 0;
}
#undef KVSHM_ADD

#define KVSHM_OWN(name, text)                                               \
  out->name = a.mine->stats[kStat_##name].load(std::memory_order_relaxed) - \
              a.stats_at_attach[kStat_##name];
int kvshm_get_own_stats(kvshm_arena* h, kvshm_stats* out) {
  if (int rc = check_size(out)) return rc;
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  const Arena& a = *call;
  clear_sized(out);
  KVSHM_COUNTER_FIELDS(KVSHM_OWN)
  return 0;
}
#undef KVSHM_OWN

int kvshm_get_block(kvshm_arena* h, uint32_t id, kvshm_block_info* out) {
  if (int rc = check_size(out)) return rc;
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  const Arena& a = *call;
  if (!a.in_range(id)) return fail(-EINVAL, "block %u out of range (%u blocks)", id, a.nblocks);
  const Hot& b = a.hot[id];
  const Cold& c = a.cold[id];
  clear_sized(out);
  constexpr auto relaxed = std::memory_order_relaxed;
  const word_t w = b.word.load(std::memory_order_acquire);
  b.load_key().store(out->key);
  out->seq = b.seq.load(relaxed);
  out->holders = holders(w);
  out->state = state(w);
  out->flags = b.flags.load(relaxed);
  out->parent = b.parent.load(relaxed);
  out->child = b.child.load(relaxed);
  out->primary = c.primary.load(relaxed);
  const std::uint32_t fd = b.freq_depth.load(relaxed);
  out->depth = fd >> 8;
  out->frequency = frequency(fd, a.sb->age_epoch.load(relaxed));
  out->stamp = b.stamp.load(relaxed);
  out->parts = c.nparts.load(relaxed);
  const std::uint64_t parts = c.parts.load(relaxed);
  out->begun = std::uint32_t(parts);
  out->arrived = std::uint32_t(parts >> 32);
  const std::uint8_t priority = b.priority.load(relaxed);
  out->priority = priority & ~kForAWhile;
  out->priority_ms = priority & kForAWhile ? ms_to(c.calms.load(relaxed)) : KVSHM_FOR_GOOD;
  out->ttl_ms = out->flags & kMortal ? ms_to(c.expires.load(relaxed)) : KVSHM_FOR_GOOD;
  out->tenant = b.tenant.load(relaxed);
  out->own_holds = own_count(a, id);
  return 0;
}

int kvshm_get_process(kvshm_arena* h, uint32_t slot, kvshm_process* out) {
  if (int rc = check_size(out)) return rc;
  if (slot >= kSlots) return fail(-EINVAL, "slot %u: wanted 0-%u", slot, kSlots - 1);
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  fill_process(*call, slot, out);
  return 0;
}

int64_t kvshm_is_valid(kvshm_arena* h, kvshm_broken_fn fn, void* user) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  return check_arena(*call, fn, user);
}
}
