#include "blocks/alloc.hpp"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <new>

#include "arena/lock.hpp"
#include "arena/object.hpp"
#include "arena/slots.hpp"
#include "blocks/close.hpp"
#include "blocks/counts.hpp"
#include "blocks/futex.hpp"
#include "blocks/quota.hpp"
#include "blocks/refusal.hpp"
#include "blocks/tenants.hpp"
#include "evict/evict.hpp"
#include "evict/ghost.hpp"
#include "evict/links.hpp"
#include "evict/own.hpp"
#include "evict/uses.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {

// Room for the ids of one call: on the stack for the usual sizes.
class Ids {
 public:
  explicit Ids(std::uint32_t n) {
    if (n > kInline) heap_.reset(new (std::nothrow) std::uint32_t[n]);
    p_ = n > kInline ? heap_.get() : stack_;
  }
  std::uint32_t* get() { return p_; }

 private:
  static constexpr std::uint32_t kInline = 2048;
  std::uint32_t stack_[kInline];
  std::unique_ptr<std::uint32_t[]> heap_;
  std::uint32_t* p_;
};

struct Claim {
  std::uint32_t free = 0, victims = 0;
  bool exhausted = false;
  int rc = 0;                 // refused before anything was claimed or counted
  bool over_quota = false;    // the tenant's own blocks that are to make room were not to be had
  std::int64_t deadline = 0;  // of the call; 0 = it did not have to wait
};

Claim claim(Arena& a, std::uint32_t n, const FillSpec& spec, std::uint32_t* ids) {
  const bool evict = !(spec.flags & KVSHM_NO_EVICT);
  Claim c;
  // What is beyond the tenant's quota replaces blocks of its own, before anything else goes.
  std::uint32_t own;
  c.rc = charge(a, spec, n, &own);
  if (c.rc) return c;
  const std::uint32_t rest = n - own;
  std::uint32_t* const last = ids + rest;
  if (own) {
    c.victims = evict ? claim_own(a, spec.tenant, own, last) : 0;
    c.over_quota = c.victims < own;
    if (c.over_quota) {
      std::copy(last, last + c.victims, ids);
      return c;
    }
  } else if (spec.contiguous && claim_run(a, n, ids)) {
    c.free = n;
    return c;
  }
  c.free = claim_free(a, rest, ids);
  if (c.free < rest) {
    const std::uint32_t more =
        evict ? claim_victims(a, rest - c.free, ids + c.free, &c.exhausted) : 0;
    if (c.free + more < rest) std::copy(last, last + own, ids + c.free + more);
    c.victims += more;
  }
  return c;
}

void unclaim(Arena& a, const Claim& c, const std::uint32_t* ids, std::uint32_t n,
             const FillSpec& spec) {
  for (std::uint32_t i = c.free + c.victims; i-- > c.free;) give_back_victim(a, ids[i]);
  unclaim_free(a, c.free, ids);
  uncharge(a, spec, n);
  if (c.victims) wake_space(a);
}

void remember(kvshm_evicted* ev, Key k) {
  if (!ev) return;
  if (ev->count < ev->cap) k.store(ev->keys[ev->count]);
  ev->count++;
}

// A claimed block gets a clean descriptor before anybody is told of it.
void prepare(Arena& a, std::uint32_t id, const FillSpec& spec) {
  Hot& h = a.hot[id];
  Cold& c = a.cold[id];
  KVSHM_STEP("alloc.prepare");
  // M:fill.4
  c.parts.store(0, std::memory_order_relaxed);
  c.nparts.store(std::uint8_t(spec.parts), std::memory_order_relaxed);
  c.primary.store(kNone, std::memory_order_relaxed);
  c.length = 0;
  c.user.store(0, std::memory_order_relaxed);
  KVSHM_STEP("alloc.flags");
  // Deadlines before the bits that say that they are there.
  if (spec.ttl_ms) c.expires.store(spec.expires, std::memory_order_relaxed);
  if (spec.priority_ms) c.calms.store(spec.calms, std::memory_order_relaxed);
  h.flags.store(
      std::uint8_t((spec.flags & KVSHM_NO_CACHE ? kLastWanted : 0) | (spec.ttl_ms ? kMortal : 0)),
      std::memory_order_relaxed);
  h.priority.store(std::uint8_t(spec.priority | (spec.priority_ms ? kForAWhile : 0)),
                   std::memory_order_relaxed);
  h.tenant.store(std::uint16_t(spec.tenant), std::memory_order_relaxed);
  KVSHM_STEP("alloc.unlink");
  h.child.store(kNone, std::memory_order_relaxed);
  h.sibling.store(kNone, std::memory_order_relaxed);
  h.parent.store(kNone, std::memory_order_relaxed);
  h.stamp.store(0, std::memory_order_relaxed);
  const std::uint32_t epoch = a.sb->age_epoch.load(std::memory_order_relaxed) & 15;
  h.freq_depth.store(epoch << 4, std::memory_order_relaxed);
}

// Block `at` could not be entered: it and all behind it go back uncounted, those before it as fills
// that were left.
void untake(Arena& a, const Claim& c, const std::uint32_t* ids, std::uint32_t at,
            const FillSpec& spec) {
  const std::uint32_t n = c.free + c.victims, behind = at + 1 > c.free ? at + 1 : c.free;
  for (std::uint32_t i = n; i-- > behind;) give_back_victim(a, ids[i]);
  unclaim_free(a, behind - at, ids + at);
  for (std::uint32_t i = at; i-- > 0;) give_back(a, ids[i]);
  quota_return(a, n - at);
  uncharge(a, spec, n - at);
  wake_space(a);
}

constexpr std::uint32_t kAhead = 4;  // victims whose ghosts are on their way into the cache

// All n are claimed: victims end their lives, everybody gets a clean descriptor and a count.
int take(Arena& a, const Claim& c, const std::uint32_t* ids, const FillSpec& spec,
         kvshm_evicted* evicted) {
  int rc = 0;
  std::int64_t deadline = c.deadline;
  const std::uint32_t n = c.free + c.victims, now = c.victims ? arena_seconds(a) : 0;
  for (std::uint32_t k = c.free; k < n && k < c.free + kAhead; k++) prefetch_ghost(a, ids[k]);
  std::uint32_t i = 0;
  for (; i < n; i++) {
    Hot& h = a.hot[ids[i]];
    if (i >= c.free) {
      if (i + kAhead < n) prefetch_ghost(a, ids[i + kAhead]);
      remember(evicted, h.load_key());
      unlink_head(a, ids[i]);
      keep_ghost(a, ids[i], Gone::kEvicted, now);
      // M:aon.8
      end_life(a, ids[i]);
      prepare(a, ids[i], spec);
      KVSHM_STEP("alloc.reuse");
      // M:fill.3 M:core.8 M:index.8 M:aon.9
      h.word.store(make_word(h.seq.load(std::memory_order_relaxed), kFilling, a.me),
                   std::memory_order_release);
      KVSHM_STEP("alloc.reused");
    } else {
      prepare(a, ids[i], spec);
    }
    rc = enter_fill(a, ids[i], spec.timeout_ms, &deadline);
    if (rc) break;
  }
  const std::uint32_t ended = i + (rc != 0), victims = ended > c.free ? ended - c.free : 0;
  a.count(kStat_allocated_total, i);
  a.count(kStat_evicted_total, victims);
  if (victims) age(a);
  if (!rc) return 0;
  untake(a, c, ids, i, spec);
  return fail(rc, "another thread of this process is stopped in the midst of block %u of arena %s",
              ids[i], a.name.c_str());
}

// One short claim, then once more after reaping, alone among the short ones.
int claim_all(Arena& a, std::uint32_t n, const FillSpec& spec, std::uint32_t* ids, Claim* c) {
  *c = claim(a, n, spec, ids);
  if (c->rc || c->free + c->victims == n) return c->rc;
  bool promised = c->victims && !c->exhausted;  // the policy chose more than it could claim
  unclaim(a, *c, ids, n, spec);
  KVSHM_STEP("alloc.short");
  // M:aon.6
  reap_dead(a, nullptr);
  if (c->over_quota) recount(a, recount_pause_ms(a));
  File f(open_object(a, O_RDWR));
  const auto* stop = spec.timeout_ms ? &a.waits.cancelled : nullptr;
  // M:aon.5
  const bool locked =
      f && lock_byte_until(f.get(), true, kAllocationByte, now_ms() + 50, stop) == 0;
  KVSHM_STEP("alloc.alone");
  // M:aon.7
  *c = claim(a, n, spec, ids);
  const bool all = c->free + c->victims == n;
  if (!all && !c->rc) {
    promised |= c->victims && !c->exhausted;
    unclaim(a, *c, ids, n, spec);
    if (promised) a.count(kStat_rollbacks_total);
  }
  if (locked) unlock_byte(f.get(), kAllocationByte);
  return all ? 0 : c->rc ? c->rc : c->over_quota ? -KVSHM_EQUOTA : -KVSHM_ENOSPACE;
}

bool no_room(int rc) { return rc == -KVSHM_ENOSPACE || rc == -KVSHM_EQUOTA; }

// Retries whenever a block becomes free or evictable, until the deadline.
int claim_waiting(Arena& a, std::uint32_t n, const FillSpec& spec, std::uint32_t* ids, Claim* c) {
  int rc = claim_all(a, n, spec, ids, c);
  if (!no_room(rc) || !spec.timeout_ms) return rc;
  a.count(kStat_waits_total);
  const std::int64_t deadline = now_ms() + spec.timeout_ms;
  auto& space = a.sb->space;
  for (;;) {
    KVSHM_STEP("space.wait");
    // M:wait.1
    const std::uint32_t f = space.fetch_or(1, std::memory_order_seq_cst) | 1;
    // M:wait.2 M:wait.4
    rc = claim_all(a, n, spec, ids, c);
    c->deadline = deadline;
    if (!no_room(rc)) return rc;
    if (a.waits.cancelled.load(std::memory_order_seq_cst)) return -KVSHM_ECANCELED;
    if (a.sb->dead.load(std::memory_order_relaxed)) return -ESTALE;
    const std::int64_t left = deadline - now_ms();
    if (left <= 0) return -ETIMEDOUT;
    KVSHM_STEP("space.sleep");
    // What changed meanwhile may be my own roll-back, or that of another who waits: neither is news,
    // and they would keep each other awake.
    if (space.load(std::memory_order_seq_cst) != f) {
      sleep_ms(left < 2 ? unsigned(left) : 2);
      continue;
    }
    // M:wait.3
    futex_wait(&space, f, left < 50 ? unsigned(left) : 50);
  }
}

// The reason, counted, and the words for it.
int refused(Arena& a, int rc, std::uint32_t n, const FillSpec& spec, bool over_quota) {
  a.count(kStat_alloc_refused_total);
  if (!no_room(rc) && rc != -ETIMEDOUT) return rc;
  const int why =
      over_quota ? KVSHM_REFUSED_QUOTA : why_short(a, n, !(spec.flags & KVSHM_NO_EVICT));
  refuse(a, rc, why);
  if (rc == -KVSHM_EQUOTA) return over_tenant_quota(a, spec.tenant);
  const char* text = why == KVSHM_REFUSED_PINNED  ? "the rest is held, being filled or pinned"
                     : why == KVSHM_REFUSED_QUOTA ? "its tenant's quota is used up"
                     : why == KVSHM_REFUSED_HELD  ? "the rest is held or being filled"
                                                  : "nothing was to be evicted";
  char limit[40] = "";
  if (rc == -ETIMEDOUT) std::snprintf(limit, sizeof limit, " within %u ms", spec.timeout_ms);
  return fail(rc, "no room for %u block(s) in arena %s%s: %s", n, a.name.c_str(), limit, text);
}

}  // namespace

std::uint8_t announce(Arena& a, std::uint32_t id, Key key) {
  std::uint32_t other = kNone;
  auto& flags = a.hot[id].flags;
  // One inserter a life, claimed before the entry can be seen: whoever finds it and joins could
  // register meanwhile. A member may publish once ANNOUNCED is set, never while it is tentative.
  KVSHM_STEP("announce.claim");
  flags.fetch_or(kInserting, std::memory_order_acq_rel);
  // M:index.10 M:core.11
  Insert done = insert_if_absent(a, id, key, &other);
  if (done == Insert::kExists && over(a, other) && evict_expired(a, other, key))
    done = insert_if_absent(a, id, key, &other);
  KVSHM_STEP("announce.inserted");
  if (done == Insert::kDone) {
    // M:tentative.3
    flags.fetch_or(kAnnounced, std::memory_order_release);
    KVSHM_STEP("announce.told");
    return KVSHM_ST_ANNOUNCED;
  }
  flags.fetch_and(std::uint8_t(~kInserting), std::memory_order_release);  // register tries again
  if (done == Insert::kFull) return KVSHM_ST_FULL;
  if (over(a, other)) return kHeldExpired;
  return is_ready(a.hot[other].word.load(std::memory_order_relaxed)) ? KVSHM_ST_EXISTS
                                                                     : KVSHM_ST_PENDING;
}

int allocate(Arena& a, std::uint32_t n, const kvshm_key* keys, const FillSpec& spec,
             kvshm_handle* out, std::uint8_t* status, kvshm_evicted* evicted) {
  if (evicted) evicted->count = 0;
  if (!n) return 0;
  Ids room(n);
  std::uint32_t* ids = room.get();
  if (!ids) return -ENOMEM;
  if (int rc = check_fits(a, spec, n)) return rc;
  if (!quota_take(a, n)) return refuse(a, over_quota(a), KVSHM_REFUSED_QUOTA);
  Claim c;
  if (int rc = claim_waiting(a, n, spec, ids, &c)) {
    quota_return(a, n);
    return refused(a, rc, n, spec, c.over_quota);
  }
  if (int rc = take(a, c, ids, spec, evicted)) {
    a.count(kStat_alloc_refused_total);
    return rc;
  }
  std::uint32_t up = spec.parent.seq ? spec.parent.id : kNone;
  for (std::uint32_t i = 0; i < n; i++) {
    Hot& h = a.hot[ids[i]];
    // M:fill.5 M:counts.3
    out[i] = {h.seq.load(std::memory_order_relaxed), ids[i], 0};
    if (status) status[i] = KVSHM_ST_NONE;
    KVSHM_STEP("alloc.parent");
    h.parent.store(up, std::memory_order_relaxed);  // linked at register
    up = spec.flags & KVSHM_UNCHAINED ? kNone : ids[i];
    if (!keys) continue;
    const Key key = Key::load(keys[i]);
    KVSHM_STEP("alloc.key");
    // M:core.9 M:index.9 M:pending.2
    h.store_key(key);
    KVSHM_STEP("alloc.keyed");
    if (spec.flags & KVSHM_QUIET) continue;
    const std::uint8_t st = announce(a, ids[i], key);
    if (status) status[i] = st == kHeldExpired ? std::uint8_t(KVSHM_ST_FULL) : st;
  }
  return 0;
}

int allocate_at(Arena& a, std::uint32_t id, Key key, const FillSpec& spec, kvshm_handle* out) {
  if (!claim_at(a, id)) return -EBUSY;
  Claim c;
  c.free = 1;
  if (int rc = take(a, c, &id, spec, nullptr)) return rc;
  Hot& h = a.hot[id];
  *out = {h.seq.load(std::memory_order_relaxed), id, 0};
  h.parent.store(spec.parent.seq ? spec.parent.id : kNone, std::memory_order_relaxed);
  h.store_key(key);
  return 0;
}

}  // namespace kvshm
