#include "tier/tier.hpp"

#include <errno.h>

#include <cstring>
#include <new>

#include "arena/lock.hpp"
#include "capi/call.hpp"
#include "capi/offers.hpp"
#include "index/index.hpp"
#include "tier/offer.hpp"

using namespace kvshm;

namespace {

constexpr const char* kStates[] = {"none",    "rebuilding", "ok",  "no space",
                                   "stalled", "failed",     "slow"};
constexpr const char* kEngines[] = {"auto", "io_uring", "threads"};

int check(const kvshm_tier_options* o) {
  if (int rc = check_size(o)) return rc;
  if (o->engine > KVSHM_TIER_THREADS || o->direct > KVSHM_OFF || o->sync > 1 ||
      o->write > KVSHM_TIER_WRITE_IDLE || (o->mover != KVSHM_AUTO && o->mover != KVSHM_OFF) ||
      o->low > 1000 || o->queue > kLaneRoom)
    return fail(
        -EINVAL,
        "options of a tier: engine 0-2, direct 0-2, sync 0-1, write 0-5, mover KVSHM_AUTO or "
        "KVSHM_OFF, low 0-1000, queue 0-%u",
        kLaneRoom);
  return 0;
}

// Calls of the tier have a handle that has one.
class TierCall {
 public:
  explicit TierCall(kvshm_arena* h, Dead dead = Dead::kRefuse) : call_(h, dead) {
    rc_ = call_.rc();
    if (rc_) return;
    // acquire: pairs with the store in kvshm_tier_open
    tier_ = h->tier.load(std::memory_order_acquire);
    if (!tier_) rc_ = fail(-ENOENT, "this handle of arena %s has no tier", (*call_).name.c_str());
  }
  int rc() const { return rc_; }
  tier::Tier* operator->() const { return tier_; }
  Arena& arena() const { return *call_; }

 private:
  Call call_;
  tier::Tier* tier_ = nullptr;
  int rc_;
};

}  // namespace

void kvshm::offer_to_tier(kvshm_arena* h, const kvshm_handle* b, std::uint32_t n) {
  tier::Tier* t = h->tier.load(std::memory_order_acquire);
  Arena& a = *h->impl;
  const std::uint32_t rule = tier::rule(a, t);
  if (rule == KVSHM_TIER_WRITE_THROUGH || rule == KVSHM_TIER_WRITE_LAZY ||
      rule == KVSHM_TIER_WRITE_IDLE)
    tier::offer(a, t, b, n, false);
}

bool kvshm::offers_at_release(const kvshm_arena* h) {
  const tier::Tier* t = h->tier.load(std::memory_order_acquire);
  return t && t->options.write == KVSHM_TIER_WRITE_RELEASE;
}

void kvshm::offer_released(kvshm_arena* h, const kvshm_handle* b, std::uint32_t n) {
  if (!offers_at_release(h)) return;
  tier::Tier* t = h->tier.load(std::memory_order_acquire);
  Arena& a = *h->impl;
  for (std::uint32_t i = 0; i < n; i++) {
    if (!a.in_range(b[i].id)) continue;
    const Hot& hot = a.hot[b[i].id];  // a look: the mover looks again before it copies
    if (!is_ready(hot.word.load(std::memory_order_relaxed)) || peek(*t->image, hot.load_key()))
      continue;
    tier::offer(a, t, &b[i], 1, false);
  }
}

extern "C" {

int kvshm_tier_open(kvshm_arena* h, const kvshm_tier_options* opts) {
  if (int rc = check(opts)) return rc;
  Call call(h);
  if (call.rc()) return call.rc();
  std::lock_guard<std::mutex> lock(h->tier_mutex);
  if (h->tier.load(std::memory_order_relaxed))
    return fail(-EEXIST, "this handle of arena %s has a tier", call->name.c_str());
  if (h->tier_owner && !h->tier_owner->stop(now_ms()))
    return fail(-EBUSY, "an earlier try to open a tier of arena %s still hangs in its file",
                call->name.c_str());
  h->tier_owner.reset();
  // The tier's thread works on the arena beside the calls: none of them is alone any more.
  if (!h->solo.end(10000)) return fail(-ETIMEDOUT, "another thread did not come out of its call");
  int rc;
  try {
    rc = tier::Tier::open(*call, *opts, &h->tier_owner);
  } catch (const std::bad_alloc&) {
    rc = fail(-ENOMEM, "out of memory");
  } catch (...) {
    rc = fail(-EIO, "unexpected failure while opening a tier of arena %s", call->name.c_str());
  }
  if (rc == 0) h->tier.store(h->tier_owner.get(), std::memory_order_release);
  return rc;
}

int kvshm_get_tier(kvshm_arena* h, kvshm_tier* out) {
  if (int rc = check_size(out)) return rc;
  TierCall t(h, Dead::kAllow);
  if (t.rc()) return t.rc();
  clear_sized(out);
  t->describe(out);
  return 0;
}

const char* kvshm_tier_state_name(uint32_t state) {
  return state < sizeof kStates / sizeof *kStates ? kStates[state] : "";
}

const char* kvshm_tier_engine_name(uint32_t engine) {
  return engine < sizeof kEngines / sizeof *kEngines ? kEngines[engine] : "";
}

int64_t kvshm_tier_store(kvshm_arena* h, const kvshm_handle* b, uint32_t n) {
  TierCall t(h);
  if (t.rc()) return t.rc();
  if (n && !b) return -EINVAL;
  for (uint32_t i = 0; i < n; i++)
    if (int rc = check_handle(t.arena(), b[i])) return rc;
  return tier::offer(t.arena(), t.operator->(), b, n, true);
}

int64_t kvshm_tier_cancel(kvshm_arena* h, const kvshm_handle* b, uint32_t n) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (n && !b) return -EINVAL;
  try {
    const std::uint32_t gone = tier::cancel(*call, b, n);
    call->count(kStat_tier_cancelled_total, gone);
    return gone;
  } catch (const std::bad_alloc&) {
    return fail(-ENOMEM, "no memory to look for %u blocks", n);
  }
}

int kvshm_tier_flush(kvshm_arena* h) {
  Call call(h);
  if (call.rc()) return call.rc();
  tier::flush(*call);
  return 0;
}

int64_t kvshm_prefetch(kvshm_arena* h, const kvshm_key* keys, uint32_t n) {
  Call call(h);
  if (call.rc()) return call.rc();
  if (n && !keys) return -EINVAL;
  return tier::prefetch(*call, keys, n);
}

int kvshm_tier_status(kvshm_arena* h, const kvshm_key* keys, uint32_t n, uint8_t* status) {
  TierCall t(h);
  if (t.rc()) return t.rc();
  if (n && (!keys || !status)) return -EINVAL;
  for (uint32_t i = 0; i < n; i++) {
    const unsigned there = t->serving() ? peek(*t->image, Key::load(keys[i])) : 0;
    status[i] = there & 1 ? KVSHM_TS_STORED : there ? KVSHM_TS_WRITING : KVSHM_TS_NONE;
  }
  return 0;
}

int kvshm_tier_drain(kvshm_arena* h, uint32_t timeout_ms) {
  TierCall t(h);
  if (t.rc()) return t.rc();
  return t->drain(timeout_ms);
}

int64_t kvshm_tier_clear(kvshm_arena* h, uint32_t timeout_ms) {
  TierCall t(h);
  if (t.rc()) return t.rc();
  return t->clear(timeout_ms);
}
}
