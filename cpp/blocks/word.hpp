// The block word: the only truth about a block.
//
//   63        53 52   51 50   48 47                                0
//   [ gen: 11  ][clock: 2][state: 3][ holders: 48, one bit a slot  ]
//
// Thread safety: a word in EVICTING is written by a plain store of its one holder; every other
// change is one compare-and-swap. All ways to FREE lead through EVICTING with exactly one bit.
#pragma once
#include <atomic>
#include <cstdint>

#include "kvshm.h"

namespace kvshm {

using word_t = std::uint64_t;

enum State : unsigned {
  kFree = KVSHM_FREE,
  kFilling = KVSHM_FILLING,
  kReady = KVSHM_READY,
  kEvicting = KVSHM_EVICTING,
  kReadyLast = KVSHM_READY_LAST,  // READY whose last release closes it
};

inline constexpr unsigned kSlots = KVSHM_SLOTS;
inline constexpr unsigned kStateShift = 48, kClockShift = 51, kGenShift = 53;
inline constexpr word_t kHolderMask = (word_t{1} << kSlots) - 1;
inline constexpr word_t kStateMask = word_t{7} << kStateShift;
inline constexpr word_t kClockMask = word_t{3} << kClockShift;
inline constexpr word_t kGenMask = ~(kHolderMask | kStateMask | kClockMask);
static_assert(kSlots == kStateShift && kStateShift + 3 == kClockShift &&
              kClockShift + 2 == kGenShift && kGenShift + 11 == 64);
static_assert(std::atomic<word_t>::is_always_lock_free && sizeof(std::atomic<word_t>) == 8);

constexpr word_t holder_bit(unsigned slot) { return word_t{1} << slot; }
constexpr word_t holders(word_t w) { return w & kHolderMask; }
constexpr State state(word_t w) { return static_cast<State>((w & kStateMask) >> kStateShift); }
constexpr unsigned clock_of(word_t w) { return unsigned((w & kClockMask) >> kClockShift); }
constexpr word_t gen_bits(std::uint64_t seq) { return seq << kGenShift; }
constexpr word_t with_state(word_t w, State s) {
  return (w & ~kStateMask) | (word_t{s} << kStateShift);
}
constexpr word_t with_holders(word_t w, word_t h) { return (w & ~kHolderMask) | h; }
constexpr word_t make_word(std::uint64_t seq, State s, word_t h) {
  return gen_bits(seq) | (word_t{s} << kStateShift) | h;
}
constexpr word_t touched(word_t w) {  // clock + 1, saturating at 3
  // without a branch: it would wait for the word to come from memory
  return w + (word_t{(w & kClockMask) != kClockMask} << kClockShift);
}
constexpr bool is_ready(word_t w) { return (state(w) & 3) == kReady; }  // READY or READY_LAST
static_assert(is_ready(word_t{kReadyLast} << kStateShift) &&
              is_ready(word_t{kReady} << kStateShift));
static_assert(!is_ready(word_t{kEvicting} << kStateShift));

}  // namespace kvshm
