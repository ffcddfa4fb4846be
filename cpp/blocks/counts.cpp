#include "blocks/counts.hpp"

#include <errno.h>

#include "arena/lock.hpp"
#include "blocks/close.hpp"
#include "blocks/futex.hpp"
#include "blocks/quota.hpp"
#include "evict/ghost.hpp"

namespace kvshm {
namespace {

constexpr std::uint32_t kT = 1u << 31, kF = 1u << 30, kCount = kF - 1;

using Cell = std::atomic<std::uint32_t>;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// T's owner alone: the new value, and a wake if a thread sleeps. A plain store, since this is on
// every path: a sleeper that it does not see yet costs that sleeper one slice of 1 ms.
inline void settle(Arena& a, Cell& c, std::uint32_t value) {
  KVSHM_STEP("count.settle");
  c.store(value, std::memory_order_release);
  if (a.count_sleepers.load(std::memory_order_relaxed)) futex_wake_all(&c, true);
}

// A call without a limit of its own waits so long for a thread that is stopped or starved.
constexpr std::int64_t kSettleMs = 10000;

// Another thread of this process is in a transition: spin, then sleep. 0, -ETIMEDOUT, or for a call
// that may be cancelled -KVSHM_ECANCELED: no call waits for ever. deadline: 0 = kSettleMs from now.
int wait_settled(Arena& a, Cell& c, bool may_cancel, std::int64_t deadline = 0) {
  for (int i = 0; i < 100; i++) {
    if (!(c.load(std::memory_order_acquire) & kT)) return 0;
    relax();
  }
  if (!deadline) deadline = now_ms() + kSettleMs;
  a.count_sleepers.fetch_add(1, std::memory_order_seq_cst);
  int rc = 0;
  for (;;) {
    const std::uint32_t v = c.load(std::memory_order_acquire);
    if (!(v & kT)) break;
    if (may_cancel && a.waits.cancelled.load(std::memory_order_relaxed)) rc = -KVSHM_ECANCELED;
    if (!rc && now_ms() >= deadline) rc = -ETIMEDOUT;
    if (rc) break;
    KVSHM_STEP("count.sleep");
    futex_wait(&c, v, 1, true);
  }
  a.count_sleepers.fetch_sub(1, std::memory_order_relaxed);
  return rc;
}

// My bit goes out of a READY or FILLING word (or I close it). Under T.
int leave_word(Arena& a, std::uint32_t id, Ticks& ticks) {
  Hot& h = a.hot[id];
  word_t w = h.word.load(std::memory_order_acquire);
  const bool flagged = KVSHM_BROKEN(no_cache_beside) && (h.flags.load() & kLastWanted);
  for (;;) {
    if (!(w & a.me)) return -KVSHM_ENOTMINE;
    const word_t others = holders(w) & ~a.me;
    const State s = state(w);
    if (s != kFilling && !is_ready(w)) return -KVSHM_ESTATE;
    if (KVSHM_BROKEN(filling_to_free) && s == kFilling && !others) return close_block(a, id), 0;
    if (others || (s == kReady && !flagged) || (KVSHM_BROKEN(last_unclosed) && s == kReadyLast)) {
      if (!others) ticks.stamp(h);
      const std::uint64_t lo = h.key[0].load(std::memory_order_relaxed);
      const std::uint32_t fd = h.freq_depth.load(std::memory_order_relaxed);
      KVSHM_STEP("leave.bit");
      // release: my reads of the payload are over before somebody may evict the block
      // seq_cst, as every change that wakes: a waiter's bit is seen, or the waiter sees this
      // M:fill.15 M:fill.16 M:core.4 M:core.13 M:word.2 M:index.25 M:wait.5
      if (!h.word.compare_exchange_weak(w, with_holders(w, others), std::memory_order_seq_cst,
                                        std::memory_order_acquire))
        continue;
      KVSHM_STEP("leave.left");
      if (!others) wake_space(a);
      if (s == kFilling) {
        a.count(kStat_aborted_total);
        wake_fill(a, id);
      } else {
        ticks.released++;
        ticks.touch(lo, fd);
      }
      return 0;
    }
    KVSHM_STEP("leave.evict");
    // M:fill.16 M:index.25
    if (!h.word.compare_exchange_weak(w, with_state(w, kEvicting), std::memory_order_acq_rel,
                                      std::memory_order_acquire))
      continue;
    KVSHM_STEP("leave.closing");
    a.count(s == kFilling ? kStat_aborted_total : kStat_closed_total);
    if (s != kFilling) ticks.released++;
    if (KVSHM_BROKEN(abort_leaves_entry) && s == kFilling) h.store_key({});
    if (s != kFilling) keep_ghost(a, id, Gone::kClosed, arena_seconds(a));
    close_block(a, id);
    return 0;
  }
}

void late_no_cache(Hot& h) {
  if (!(h.flags.load(std::memory_order_seq_cst) & kLastWanted)) return;
  KVSHM_STEP("publish.late");
  word_t w = h.word.load(std::memory_order_relaxed);
  // M:dup.12
  while (is_ready(w) &&
         !h.word.compare_exchange_weak(w, with_state(w, kReadyLast), std::memory_order_acq_rel)) {
  }
}

}  // namespace

std::uint32_t own_count(const Arena& a, std::uint32_t id) {
  return a.counts[id].load(std::memory_order_relaxed) & kCount;
}

Take take_ready(Arena& a, std::uint32_t id, bool touch, bool swap) {
  Cell& c = a.counts[id];
  Hot& h = a.hot[id];
  std::uint32_t v = c.load(std::memory_order_acquire);
  for (;;) {
    if (v & kT) {
      if (wait_settled(a, c, true)) return Take::kMiss;
      v = c.load(std::memory_order_acquire);
      continue;
    }
    if ((v & kCount) && !(v & kF)) {  // C2
      KVSHM_STEP("count.more");
      // M:counts.10
      if (c.compare_exchange_weak(v, v + 1, std::memory_order_acquire)) return Take::kHeld;
      continue;
    }
    if (!c.compare_exchange_weak(v, v | kT, std::memory_order_acquire)) continue;
    if (v & kCount) {  // my process takes part in the fill: is it READY by now?
      // M:counts.11
      const bool ready = is_ready(h.word.load(std::memory_order_acquire));
      settle(a, c, ready ? (v & kCount) + 1 : v);
      return ready ? Take::kHeld : Take::kPending;
    }
    if (!KVSHM_BROKEN(region_late)) a.enter_region(id);
    word_t w = h.word.load(std::memory_order_relaxed);
    const bool counted = is_ready(w);
    if (counted && swap) {
      quota_swap(a);
    } else if (counted && !quota_take(a)) {
      settle(a, c, 0);
      return Take::kOver;
    }
    while (counted && is_ready(w)) {
      KVSHM_STEP("take.before");
      const word_t to = (touch ? touched(w) : w) | a.me;
      // acquire: pairs with the release of publish; the payload and the key are read after it
      // M:fill.14 M:core.2 M:index.2 M:word.1 M:counts.12 M:slots.5
      if (h.word.compare_exchange_weak(w, to, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
        KVSHM_STEP("take.taken");
        if (KVSHM_BROKEN(region_late)) a.enter_region(id);
        settle(a, c, 1);
        return Take::kHeld;
      }
    }
    if (counted) quota_return(a);
    settle(a, c, 0);
    return state(w) == kFilling ? Take::kPending : Take::kMiss;
  }
}

int join_fill(Arena& a, std::uint32_t id, std::uint64_t seq) {
  Cell& c = a.counts[id];
  Hot& h = a.hot[id];
  for (;;) {
    std::uint32_t v = c.load(std::memory_order_acquire);
    if (v & kT) {
      const int rc = wait_settled(a, c, true);
      if (rc) return rc == -ETIMEDOUT ? -ENOENT : rc;
      continue;
    }
    if ((v & kCount) && !(v & kF)) return -ENOENT;  // READY: upgrade instead
    // M:counts.4
    if (!c.compare_exchange_weak(v, v | kT, std::memory_order_acquire)) continue;
    if (v & kCount) {
      // M:counts.5
      const bool ok = state(h.word.load(std::memory_order_acquire)) == kFilling &&
                      h.seq.load(std::memory_order_relaxed) == seq;
      settle(a, c, ok && !KVSHM_BROKEN(fill_uncounted) ? v + 1 : v);
      return ok ? 0 : -ENOENT;
    }
    if (!quota_take(a)) {
      settle(a, c, 0);
      return -KVSHM_EQUOTA;
    }
    a.enter_region(id);
    word_t w = h.word.load(std::memory_order_acquire);
    // M:counts.6
    while (state(w) == kFilling && holders(w) && !(w & a.me)) {  // C4
      KVSHM_STEP("join.before");
      // M:fill.6 M:pending.6 M:counts.6 M:slots.5
      if (!h.word.compare_exchange_weak(w, w | a.me, std::memory_order_acq_rel,
                                        std::memory_order_acquire))
        continue;
      KVSHM_STEP("join.joined");
      if (KVSHM_BROKEN(join_any_life)) return settle(a, c, 1 | kF), 0;
      // M:fill.7 M:pending.7 M:counts.7
      if (h.seq.load(std::memory_order_relaxed) == seq) {
        settle(a, c, 1 | kF);
        return 0;
      }
      Ticks ticks(a);
      leave_word(a, id, ticks);  // another life
      break;
    }
    quota_return(a);
    settle(a, c, 0);
    return -ENOENT;
  }
}

int enter_fill(Arena& a, std::uint32_t id, std::uint32_t timeout_ms, std::int64_t* deadline) {
  Cell& c = a.counts[id];
  std::uint32_t v = 0;
  KVSHM_STEP("alloc.count");
  // Only a transition that is bound to fail (it meets my FILLING word) can be in the way. A count
  // without one: the word was damaged and said FREE of a block that this process holds. It is one
  // membership more then, and each is given back in its turn.
  // M:counts.2
  while (!c.compare_exchange_weak(v, ((v & kCount) + 1) | kF, std::memory_order_acq_rel)) {
    if (!(v & kT)) continue;
    if (!*deadline) *deadline = now_ms() + (timeout_ms ? timeout_ms : 1000);
    if (int rc = wait_settled(a, c, timeout_ms != 0, *deadline)) return rc;
    v = 0;
  }
  if (v & kCount) quota_return(a);  // counted as a block before
  return 0;
}

int give_back(Arena& a, std::uint32_t id, Ticks& ticks) {
  Cell& c = a.counts[id];
  bool was_last = false;
  std::uint32_t v = c.load(std::memory_order_acquire);
  for (;;) {
    if (v & kT) {
      if (int rc = wait_settled(a, c, false)) return rc;
      v = c.load(std::memory_order_acquire);
      continue;
    }
    if (!(v & kCount)) return -KVSHM_ENOTMINE;
    if ((v & kCount) > 1) {
      KVSHM_STEP("count.less");
      // M:counts.14
      if (!c.compare_exchange_weak(v, v - 1, std::memory_order_release)) continue;
      if (was_last) a.count(kStat_revived_total);
      ticks.released++;
      return 0;
    }
    was_last = true;
    KVSHM_STEP("drop.last");  // semantics 26, 27: a look-up may revive the block right here
    // M:counts.14
    if (!c.compare_exchange_weak(v, v | kT, std::memory_order_acq_rel)) continue;
    if (KVSHM_BROKEN(leave_insists) && (v & kF) && is_ready(a.hot[id].word.load()))
      return settle(a, c, 0), -KVSHM_ESTATE;
    // M:counts.15
    const int rc = leave_word(a, id, ticks);
    quota_return(a);
    // M:counts.15
    settle(a, c, 0);
    return rc;
  }
}

int give_back(Arena& a, std::uint32_t id) {
  Ticks ticks(a);
  return give_back(a, id, ticks);
}

Published publish_fill(Arena& a, std::uint32_t id, bool last, std::uint32_t primary) {
  Cell& c = a.counts[id];
  Hot& h = a.hot[id];
  std::uint32_t v = c.load(std::memory_order_acquire);
  for (;;) {
    if (v & kT) {
      if (wait_settled(a, c, false)) return Published::kNotMine;
      v = c.load(std::memory_order_acquire);
      continue;
    }
    if (!(v & kCount)) return Published::kNotMine;
    if (!(v & kF)) return Published::kBefore;  // a thread of mine saw it READY
    // M:counts.8
    if (!c.compare_exchange_weak(v, v | kT, std::memory_order_acquire)) continue;
    word_t w = h.word.load(std::memory_order_acquire);
    bool mine = false, alone = false;
    while (!mine && state(w) == kFilling && (w & a.me)) {
      alone = holders(w) == a.me && (v & kCount) == 1;
      KVSHM_STEP("publish.primary");
      // M:dup.3 M:index.11
      a.cold[id].primary.store(alone ? primary : kNone, std::memory_order_relaxed);
      KVSHM_STEP("publish.before");
      if (KVSHM_BROKEN(publish_by_store)) {
        h.word.store(with_state(w, last ? kReadyLast : kReady));
        mine = true;
        break;
      }
      // release: payload, key, flags and primary before READY; pairs with the acquire of take_ready
      // seq_cst: against a waiter's bit, and against NO_CACHE (late_no_cache, set_no_cache)
      // M:fill.13 M:core.12 M:index.12 M:dup.4 M:aon.10 M:wait.5
      mine = h.word.compare_exchange_weak(w, with_state(w, last ? kReadyLast : kReady),
                                          std::memory_order_seq_cst, std::memory_order_acquire);
    }
    if (mine) KVSHM_STEP("publish.ready");
    // NO_CACHE asked for while this publish was under way: still held, so the word can be changed.
    if (mine && !last) late_no_cache(h);
    const bool ready = mine || (is_ready(w) && (w & a.me));
    // M:counts.9
    settle(a, c, ready ? (v & kCount) : v);
    if (mine) wake_fill(a, id);
    if (mine) return alone ? Published::kByMeAlone : Published::kByMe;
    return ready ? Published::kBefore : Published::kNotMine;
  }
}

bool holds_ready(Arena& a, std::uint32_t id, std::uint64_t seq) {
  if (!own_count(a, id)) return false;
  KVSHM_STEP("hold.look");  // another member may publish the block right here
  const Hot& h = a.hot[id];
  const word_t w = h.word.load(std::memory_order_acquire);
  return is_ready(w) && (w & a.me) && h.seq.load(std::memory_order_relaxed) == seq;
}

bool fills(Arena& a, std::uint32_t id, std::uint64_t seq) {
  if (!own_count(a, id)) return false;
  KVSHM_STEP("hold.look");  // another member may publish the block right here
  const Hot& h = a.hot[id];
  const word_t w = h.word.load(std::memory_order_seq_cst);  // set_no_cache looks after its flag
  return state(w) == kFilling && (w & a.me) && h.seq.load(std::memory_order_relaxed) == seq;
}

}  // namespace kvshm
