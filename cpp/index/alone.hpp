// Look-up + hold, and release, of one READY block by a thread that is alone (arena/solo.hpp): the
// transitions of lookup() and give_back() for the case that nearly always holds, inline and in so
// few instructions that the processor has the memory accesses of the next call under way before
// this one ends. At a million blocks that is what counts.
//
// No function is called here, not even where it would be rare: a call that may happen makes every
// one save registers. What is left to do is told to the caller: *stale, *waited_for.
//
// False: nothing has changed, and the general way decides; but a look-up may have taken a block that
// has another key by now (*stale): the caller gives it back.
#pragma once
#include <bit>

#include "arena/breaks.hpp"
#include "arena/solo.hpp"
#include "blocks/counts.hpp"
#include "index/bucket.hpp"
#include "index/index.hpp"

namespace kvshm {

// One more use, as touch_frequency().
[[gnu::always_inline]] inline void touch_alone(Arena& a, Hot& h) {
  const std::uint32_t fd = h.freq_depth.load(std::memory_order_relaxed);
  const std::uint32_t epoch = a.sb->age_epoch.load(std::memory_order_relaxed);
  std::uint32_t to = fd + 1;
  if (!(to & 15)) to = fd;  // saturated
  if ((fd ^ epoch << 4) & 0xf0) [[unlikely]]
    to = aged_touch(fd, epoch);
  KVSHM_STEP("touch.frequency");
  h.freq_depth.store(to, std::memory_order_relaxed);
}

[[gnu::always_inline]] inline bool lookup_alone(Arena& a, const std::uint8_t* key,
                                                kvshm_handle* out, std::uint32_t* stale) {
  const Key k = Key::load(key);  // no key (zero) is found to be none below: no block has it
  if (a.sb->dead.load(std::memory_order_relaxed) || broken_at_all()) return false;
  const auto* e = a.index + bucket_of(k.lo, a.nbuckets) * kIndexWays;
  unsigned bits = with_tag(e, tag_of(k));
  if (!bits) [[unlikely]] {
    e = a.index + bucket_of(k.hi, a.nbuckets) * kIndexWays;
    bits = with_tag(e, tag_of(k));
    if (!bits) return false;
  }
  // acquire, and the whole key is compared below: as in lookup()
  // M:core.1 M:index.1
  const std::uint64_t v = e[std::countr_zero(bits)].load(std::memory_order_acquire);
  const std::uint32_t id = entry::id(v);
  if (!a.in_range(id)) return false;
  Hot& h = a.hot[id];
  if (a.counts[id].load(std::memory_order_relaxed)) return false;
  word_t w = h.word.load(std::memory_order_relaxed);
  if (h.flags.load(std::memory_order_relaxed) & kMortal) return false;  // its time may be over
  if (!is_ready(w) || !(a.in_all_regions.load(std::memory_order_relaxed) || a.in_region(id)))
    return false;
  KVSHM_STEP("take.before");
  // acquire: pairs with the release of publish
  // M:fill.14 M:core.2 M:index.2 M:word.1 M:counts.12 M:slots.5
  if (!h.word.compare_exchange_strong(w, touched(w) | a.me, std::memory_order_acq_rel))
    return false;
  KVSHM_STEP("take.taken");
  a.counts[id].store(1, std::memory_order_relaxed);
  // M:core.3 M:index.3
  if (h.load_key() == Key::load(key) &&
      !(h.flags.load(std::memory_order_relaxed) & (kDuplicate | kMortal))) [[likely]] {
    touch_alone(a, h);
    auto* stats = a.mine->stats;
    bump(stats[kStat_lookups_total]);
    bump(stats[kStat_hits_total]);
    bump(stats[kStat_touches_total]);
    out->seq = h.seq.load(std::memory_order_relaxed);
    out->id = id;
    out->zero = 0;
    return true;
  }
  *stale = id;
  return false;
}

[[gnu::always_inline]] inline bool release_alone(Arena& a, const kvshm_handle* b,
                                                 bool* waited_for) {
  if (!a.in_range(b->id) || broken_at_all()) return false;
  auto& count = a.counts[b->id];
  Hot& h = a.hot[b->id];
  if (count.load(std::memory_order_relaxed) != 1) return false;
  word_t w = h.word.load(std::memory_order_acquire);
  // In the state READY my bit means a hold; a life number 0 is no block's.
  if (state(w) != kReady || !(w & a.me) || h.seq.load(std::memory_order_relaxed) != b->seq)
    return false;
  const word_t others = w & kHolderMask & ~a.me;
  // relaxed: hints, of lines that are here or hardly ever written
  const std::uint64_t mixed = touches::mixed(h.key[0].load(std::memory_order_relaxed));
  const std::uint32_t fd = h.freq_depth.load(std::memory_order_relaxed);
  const PolicyTable& p = a.sb->policy;
  if (!others && (!(p.flags.load(std::memory_order_relaxed) & KVSHM_POLICY_ONCE) ||
                  !h.stamp.load(std::memory_order_relaxed)))
    h.stamp.store(a.sb->tick.fetch_add(1, std::memory_order_relaxed) + 1,
                  std::memory_order_relaxed);
  KVSHM_STEP("leave.bit");
  // release: my reads of the payload are over before somebody may evict the block. seq_cst: who
  // waits for space sees it, or we its bit, as in leave_word().
  // M:fill.15 M:core.13 M:word.2
  if (!h.word.compare_exchange_strong(w, w & ~a.me, std::memory_order_seq_cst)) return false;
  KVSHM_STEP("leave.left");
  count.store(0, std::memory_order_relaxed);
  // seq_cst, as in wake_space(): we see the waiter, or it sees the block
  *waited_for = !others && (a.sb->space.load(std::memory_order_seq_cst) & 1);
  bump(a.mine->stats[kStat_released_total]);
  if (touches::sampled(mixed, p.touch_mask.load(std::memory_order_relaxed)))
    touches::record(a, mixed, fd);
  return true;
}

}  // namespace kvshm
