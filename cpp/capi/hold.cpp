#include <errno.h>

#include "blocks/close.hpp"
#include "blocks/counts.hpp"
#include "blocks/deadlines.hpp"
#include "blocks/holds.hpp"
#include "blocks/quota.hpp"
#include "blocks/registration.hpp"
#include "blocks/waiting.hpp"
#include "capi/call.hpp"
#include "capi/offers.hpp"
#include "index/alone.hpp"
#include "index/index.hpp"

using namespace kvshm;

namespace {

void count_one(Arena& a, Take how, bool touch) {
  a.count(kStat_lookups_total);
  a.count(how == Take::kHeld      ? kStat_hits_total
          : how == Take::kPending ? kStat_pending_total
                                  : kStat_misses_total);
  if (how == Take::kHeld && touch) a.count(kStat_touches_total);
}

[[gnu::noinline]] int acquire(kvshm_arena* h, const std::uint8_t* key, uint32_t flags,
                              kvshm_handle* out) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (!key || !out) return -EINVAL;
  Arena& a = *call;
  const Key k = Key::load(key);
  if (k.none()) return fail(-EINVAL, "the key is all zero: no key");
  const bool touch = !(flags & KVSHM_NO_TOUCH);
  const Found f = lookup(a, k, touch);
  if (f.how == Take::kOver) return over_quota(a);
  count_one(a, f.how, touch);
  if (f.how == Take::kMiss) return -ENOENT;
  const std::uint64_t seq =
      f.how == Take::kHeld ? a.hot[f.id].seq.load(std::memory_order_relaxed) : f.seq;
  *out = {seq, f.id, 0};
  return f.how == Take::kHeld ? 0 : -KVSHM_EPENDING;
}

[[gnu::noinline]] int drop(kvshm_arena* h, const kvshm_handle* b, uint32_t n) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  if (n && !b) return -EINVAL;
  Arena& a = *call;
  int first = 0;
  Ticks ticks(a, n);
  for (uint32_t i = n; i-- > 0;) {  // tail first: the head of a chain stays the youngest
    int rc = check_handle(a, b[i]);
    if (!rc && !holds_ready(a, b[i].id, b[i].seq))
      rc = fills(a, b[i].id, b[i].seq) ? -KVSHM_ESTATE : -KVSHM_ENOTMINE;
    if (!rc) rc = release_hold(a, b[i].id, ticks);
    if (rc) first = misuse(a, rc);
  }
  offer_released(h, b, n);
  return first;
}

[[gnu::noinline]] int acquire_after(kvshm_arena* h, std::uint32_t stale, const std::uint8_t* key,
                                    kvshm_handle* out) {
  {
    Call call(h, Dead::kAllow);
    if (call.rc()) return call.rc();
    // M:core.4 M:index.4
    give_back(*call, stale);
  }
  return acquire(h, key, 0, out);
}

[[gnu::noinline]] int wake_after(kvshm_arena* h) {
  Call call(h, Dead::kAllow);
  if (!call.rc()) wake_space(*call);
  return 0;
}

}  // namespace

extern "C" {

int kvshm_acquire(kvshm_arena* h, const uint8_t key[16], uint32_t flags, kvshm_handle* out) {
  if (key && out && !flags && enter_alone(h)) [[likely]] {
    std::uint32_t stale = kNone;
    const bool held = lookup_alone(*h->impl, key, out, &stale);
    h->solo.leave();
    if (held) return 0;
    if (stale != kNone) return acquire_after(h, stale, key, out);
    return acquire(h, key, 0, out);  // flags, said again: they need no register until here
  }
  return acquire(h, key, flags, out);
}

int kvshm_upgrade(kvshm_arena* h, kvshm_handle b, uint32_t flags) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  if (int rc = check_handle(*call, b)) return rc;
  // One more hold of what is held: readers go on in a removed arena until they release.
  if (call->sb->dead.load(std::memory_order_relaxed) && !holds_ready(*call, b.id, b.seq))
    return stale(*call);
  const int rc = upgrade(*call, b, !(flags & KVSHM_NO_TOUCH));
  return rc == -KVSHM_EQUOTA ? over_quota(*call) : rc;
}

int kvshm_drop(kvshm_arena* h, const kvshm_handle* b, uint32_t n) {
  if (b && n == 1 && enter_alone(h)) [[likely]] {
    bool waited_for = false;
    const bool dropped = release_alone(*h->impl, b, &waited_for);
    h->solo.leave();
    if (waited_for) return wake_after(h);
    if (dropped) return 0;
  }
  return drop(h, b, n);
}

int kvshm_handle_of(kvshm_arena* h, uint32_t id, kvshm_handle* out) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  if (!out || !call->in_range(id)) return -EINVAL;
  *out = {call->hot[id].seq.load(std::memory_order_acquire), id, 0};
  return 0;
}

int kvshm_set_no_cache(kvshm_arena* h, kvshm_handle b, int on) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (int rc = check_handle(*call, b)) return rc;
  return misuse(*call, set_no_cache(*call, b, on != 0));
}

int kvshm_set_priority_for(kvshm_arena* h, kvshm_handle b, uint32_t priority, uint64_t ms) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (int rc = check_handle(*call, b)) return rc;
  if (priority > 100) return fail(-EINVAL, "priority %u: wanted 0-100", priority);
  Arena& a = *call;
  // FILLING first: it may be published between the two looks.
  if (!fills(a, b.id, b.seq) && !holds_ready(a, b.id, b.seq)) return misuse(a, -KVSHM_ENOTMINE);
  return set_priority(a, b.id, priority, ms);
}

int kvshm_set_priority(kvshm_arena* h, kvshm_handle b, uint32_t priority) {
  return kvshm_set_priority_for(h, b, priority, 0);
}

int kvshm_wait(kvshm_arena* h, kvshm_handle b, uint32_t timeout_ms) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (int rc = check_handle(*call, b)) return rc;
  return wait_fill(*call, b, timeout_ms);
}

int kvshm_cancel_waits(kvshm_arena* h, int on) {
  Call call(h, Dead::kAllow);
  if (call.rc()) return call.rc();
  cancel_waits(*call, on != 0);
  return 0;
}

void* kvshm_block_data(kvshm_arena* h, uint32_t id) {
  Call call(h, Dead::kAllow);
  if (call.rc() || !call->in_range(id) || !call->block_bytes) return nullptr;
  return call->data + std::uint64_t(id) * call->block_bytes;
}
}
