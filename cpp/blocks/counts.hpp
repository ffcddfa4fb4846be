// Holds and fill memberships of this process, and the shared transitions behind them.
//
// counts[id] is private memory:  [T:1][F:1][count:30]
//   T  somebody of this process is changing my bit in the word; its owner alone stores
//   F  not known READY: a membership of a fill counts like a hold
//
// Invariants
//   C1  my bit in a word changes only 0 -> 1 or 1 -> 0 together with the count, under T
//       (allocate sets it before anybody knows the block, then waits for T; in vain: takes it back)
//   C2  count > 0 without F: the block is READY and held; +1 writes nothing shared
//   C3  key or seq is compared after every +1, also the private one
//   C4  a join that finds my bit although the count is 0 is a miss: a thread of mine is allocating
#pragma once
#include <cstdint>

#include "arena/arena.hpp"
#include "evict/touches.hpp"

namespace kvshm {

enum class Take { kHeld, kMiss, kPending, kOver };  // kOver: READY, but the quota forbids it

// Hold `id` if it is READY. The caller then compares key or seq and calls give_back if they differ.
// A miss, too, if another thread of this process is stopped in the midst of the block.
// swap: for a moment, or in place of a block that this process gives back: the quota lets it pass.
Take take_ready(Arena& a, std::uint32_t id, bool touch, bool swap = false);
// Become a member of fill (id, seq). 0, -ENOENT, -KVSHM_EQUOTA, -KVSHM_ECANCELED.
int join_fill(Arena& a, std::uint32_t id, std::uint64_t seq);
// After this thread's CAS to FILLING{me}, before anybody is told; the quota was asked before. -ETIMEDOUT, -KVSHM_ECANCELED: a
// thread of this process is stopped in the midst of the block; the caller gives it back without
// having entered. The limit is *deadline, which is set from timeout_ms (0: a second) where it is 0.
int enter_fill(Arena& a, std::uint32_t id, std::uint32_t timeout_ms, std::int64_t* deadline);
// One hold or membership less; the last one releases, leaves or closes. -KVSHM_ENOTMINE.
// next_tick: where ticks for blocks that nobody holds any more come from.
class Ticks;
int give_back(Arena& a, std::uint32_t id, Ticks& ticks);
int give_back(Arena& a, std::uint32_t id);
// FILLING (all parts arrived, checked by the caller) -> READY or READY_LAST, F cleared.
// primary: of a duplicate, held by the caller. It is recorded only if the caller is the fill's one
// member: others hold the duplicate without having taken its primary, and would give back too much.
enum class Published { kByMe, kByMeAlone, kBefore, kNotMine };
Published publish_fill(Arena& a, std::uint32_t id, bool last, std::uint32_t primary = kNone);
// Is this process a holder / a member of (id, seq)?
bool holds_ready(Arena& a, std::uint32_t id, std::uint64_t seq);
bool fills(Arena& a, std::uint32_t id, std::uint64_t seq);
std::uint32_t own_count(const Arena& a, std::uint32_t id);

// A batch of releases: stamps reserved in one step and taken tail first, one count at the end.
class Ticks {
 public:
  explicit Ticks(Arena& a, std::uint32_t expected = 1)
      : a_(a),
        expected_(expected),
        // relaxed, of a line that is hardly ever written: an old policy for a batch more
        once_(a.sb->policy.flags.load(std::memory_order_relaxed) & KVSHM_POLICY_ONCE),
        touch_mask_(a.sb->policy.touch_mask.load(std::memory_order_relaxed)) {}
  Ticks(const Ticks&) = delete;
  ~Ticks() { a_.count(kStat_released_total, released); }
  std::uint32_t next() {
    if (!left_) {
      left_ = expected_ ? expected_ : 1;
      // relaxed: a stamp is a hint
      at_ = a_.sb->tick.fetch_add(left_, std::memory_order_relaxed) + 1;
    }
    left_--;
    return at_++;
  }
  // For a block that nobody holds any more; where only the first one counts, 0 tells that it is due.
  void stamp(Hot& h) {
    if (!once_ || !h.stamp.load(std::memory_order_relaxed))
      h.stamp.store(next(), std::memory_order_relaxed);
  }
  // A use of the key is over, for who learns from uses.
  void touch(std::uint64_t key_lo, std::uint32_t freq_depth) {
    const std::uint64_t mixed = touches::mixed(key_lo);
    if (touches::sampled(mixed, touch_mask_)) touches::record(a_, mixed, freq_depth);
  }
  std::uint64_t released = 0;

 private:
  Arena& a_;
  std::uint32_t expected_, left_ = 0, at_ = 0;
  bool once_;
  std::uint32_t touch_mask_;
};

}  // namespace kvshm
