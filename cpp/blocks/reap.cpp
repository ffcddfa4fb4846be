#include "blocks/reap.hpp"

#include "blocks/close.hpp"
#include "evict/ghost.hpp"
#include "index/index.hpp"

namespace kvshm {
namespace {

void stamp(Arena& a, Hot& h) {
  h.stamp.store(a.sb->tick.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

}  // namespace

void reap_block(Arena& a, std::uint32_t id, unsigned slot, bool device_free, ReapCounts* counts) {
  Hot& h = a.hot[id];
  const word_t dead = holder_bit(slot);
  word_t w = h.word.load(std::memory_order_acquire);
  while (w & dead) {
    word_t others = holders(w) & ~dead;
    if (KVSHM_BROKEN(scrub_frees_shared) && state(w) == kFilling) others = 0;
    if (KVSHM_BROKEN(scrub_leaves_entries) && !is_ready(w) && !others) h.store_key({});
    switch (state(w)) {
      case kReady:
        if (!others) stamp(a, h);
        KVSHM_STEP("reap.release");
        // M:fill.19 M:core.15 M:word.3
        if (!h.word.compare_exchange_weak(w, with_holders(w, others), std::memory_order_seq_cst,
                                          std::memory_order_acquire))
          continue;
        KVSHM_STEP("reap.released");
        counts->holds++;
        if (!others) wake_space(a);
        return;
      case kReadyLast:
        KVSHM_STEP("reap.last");
        if (KVSHM_BROKEN(last_bit_cleared)) {
          h.word.fetch_and(~dead);
          return;
        }
        // M:core.15 M:dup.13
        if (!h.word.compare_exchange_weak(
                w, others ? with_holders(w, others) : with_state(w, kEvicting),
                std::memory_order_seq_cst, std::memory_order_acquire))
          continue;
        KVSHM_STEP("reap.lasted");
        counts->holds++;
        if (!others) keep_ghost(a, id, Gone::kClosed, arena_seconds(a));
        // M:core.16 M:index.29
        if (!others) close_block(a, id);
        return;
      case kFilling:
        // What only the dead hold must not block its key; a tentative entry has no owner any more.
        KVSHM_STEP("reap.erase");
        if (others) {
          // M:tentative.4
          if (!KVSHM_BROKEN(tentative_left)) erase_tentative(a, id, h.load_key());
        } else {
          h.flags.fetch_or(kFailed, std::memory_order_seq_cst);  // waiters: nobody will publish it
          KVSHM_STEP("reap.failed");
          erase_entries(a, id, h.load_key());
        }
        KVSHM_STEP("reap.erased");
        // M:fill.20
        if (!device_free) {  // a device may still write: the block stays as it is
          KVSHM_STEP("reap.device");
          wake_fill(a, id);
          counts->clean = false;
          return;
        }
        // M:fill.21 M:core.15 M:tentative.5
        if (!h.word.compare_exchange_weak(
                w, others ? with_holders(w, others) : with_state(w, kEvicting),
                std::memory_order_seq_cst, std::memory_order_acquire))
          continue;
        KVSHM_STEP("reap.filling");
        counts->fills++;
        if (others)
          wake_fill(a, id);
        else
          // M:core.16 M:index.29
          close_block(a, id);
        return;
      case kEvicting:  // half-way to FREE or to a new life: go on to FREE
        KVSHM_STEP("reap.evicting");
        counts->evictions++;
        // M:core.16 M:index.29
        close_block(a, id);
        return;
      default:
        return;  // FREE has no holders: is_valid reports it
    }
  }
}

}  // namespace kvshm
