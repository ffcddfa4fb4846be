#include <bit>

#include "blocks/deadlines.hpp"
#include "index/bucket.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {

inline std::atomic<std::uint64_t>* bucket(Arena& a, std::uint64_t b) {
  return a.index + b * kIndexWays;
}

// Calls f(id) for each committed entry with the key's tag until it says stop.
template <class F>
bool each_candidate(Arena& a, Key key, F f) {
  const Spot s = spot_of(key, a.nbuckets);
  __builtin_prefetch(bucket(a, s.b2));
  for (unsigned side = 0; side < (s.b1 == s.b2 ? 1u : 2u); side++) {
    const auto* e = bucket(a, side ? s.b2 : s.b1);
    for (unsigned bits = with_tag(e, tag_of(key)); bits; bits &= bits - 1) {
      // acquire: pairs with the release that committed it, so the key behind it is complete
      // M:core.1 M:index.1
      const std::uint64_t v = e[std::countr_zero(bits)].load(std::memory_order_acquire);
      if ((v >> 32) != s.tag || !std::uint32_t(v)) continue;  // tentative has bit 63: no match
      if (a.in_range(entry::id(v)) && f(entry::id(v))) return true;
    }
  }
  return false;
}

}  // namespace

void prefetch_buckets(Arena& a, Key key) {
  const Spot s = spot_of(key, a.nbuckets);
  __builtin_prefetch(bucket(a, s.b1));
  __builtin_prefetch(bucket(a, s.b2));
}

std::uint32_t prefetch_block(Arena& a, Key key) {
  std::uint32_t first = kNone;
  each_candidate(a, key, [&](std::uint32_t id) {
    __builtin_prefetch(&a.hot[id], 1);
    __builtin_prefetch(&a.counts[id], 1);
    first = id;
    return true;
  });
  return first;
}

void touch_frequency(Arena& a, Hot& h) {
  // relaxed load and store: two processes may lose a touch; the count is a hint
  const std::uint32_t fd = h.freq_depth.load(std::memory_order_relaxed);
  const std::uint32_t to = aged_touch(fd, a.sb->age_epoch.load(std::memory_order_relaxed));
  if (to == fd) return;
  KVSHM_STEP("touch.frequency");
  h.freq_depth.store(to, std::memory_order_relaxed);
}

namespace {

// True: found, held.
inline bool try_block(Arena& a, std::uint32_t id, Key key, bool touch, bool swap, Found* found) {
  Hot& h = a.hot[id];
  // Both lines at once: the locked operation on the count would hold back the second miss.
  __builtin_prefetch(&h, 1);
  __builtin_prefetch(&a.counts[id], 1);
  switch (take_ready(a, id, touch, swap)) {
    case Take::kHeld:
      // The entry may be stale and the block reused, even as a duplicate of this very key, whose
      // release would drop a primary that was never taken: that is a miss, too.
      if (KVSHM_BROKEN(no_key_check) || (KVSHM_BROKEN(takes_duplicate) && h.load_key() == key))
        return *found = {Take::kHeld, id, 0}, true;
      // M:core.3 M:index.3
      if (h.load_key() == key && !(h.flags.load(std::memory_order_relaxed) & kDuplicate) &&
          !expired(a, id)) {
        if (touch) touch_frequency(a, h);
        *found = {Take::kHeld, id, 0};
        return true;
      }
      KVSHM_STEP("lookup.stale");
      // M:core.4 M:index.4
      give_back(a, id);
      return false;
    case Take::kPending: {
      // seq, then key: the key is 0 from EVICTING until it is written, so both are of one life
      const Key early = KVSHM_BROKEN(key_before_seq) ? h.load_key() : Key{};
      if (KVSHM_BROKEN(key_before_seq)) KVSHM_STEP("lookup.pending");
      // M:pending.4
      const std::uint64_t seq = h.seq.load(std::memory_order_acquire);
      if (!KVSHM_BROKEN(key_before_seq)) KVSHM_STEP("lookup.pending");
      if (early == key) *found = {Take::kPending, id, seq};
      // M:pending.5 M:index.5
      if (h.load_key() == key) *found = {Take::kPending, id, seq};
      return false;
    }
    case Take::kOver:  // READY, and most likely of this key; a look would need a hold
      *found = {Take::kOver, id, 0};
      return true;
    case Take::kMiss:
      return false;
  }
  return false;
}

}  // namespace

Found lookup(Arena& a, Key key, bool touch, bool swap) {
  Found found;
  each_candidate(a, key,
                 [&](std::uint32_t id) { return try_block(a, id, key, touch, swap, &found); });
  return found;
}

Found lookup_at(Arena& a, Key key, bool touch, std::uint32_t guess) {
  Found found;
  if (guess != kNone && try_block(a, guess, key, touch, false, &found)) return found;
  return lookup(a, key, touch);
}

unsigned peek(Arena& a, Key key) {
  unsigned bits = 0;
  each_candidate(a, key, [&](std::uint32_t id) {
    const Hot& h = a.hot[id];
    const word_t w = h.word.load(std::memory_order_acquire);
    if (!(h.load_key() == key)) return false;
    if (is_ready(w) && !expired(a, id)) bits |= 1;
    if (state(w) == kFilling) bits |= 2;
    return false;
  });
  return bits;
}

}  // namespace kvshm
