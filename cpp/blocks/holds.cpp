#include "blocks/holds.hpp"

#include "blocks/counts.hpp"

namespace kvshm {

int set_no_cache(Arena& a, kvshm_handle b, bool on) {
  Hot& h = a.hot[b.id];
  if (fills(a, b.id, b.seq)) {
    KVSHM_STEP("nocache.flag");
    // seq_cst: the publisher sees the flag (late_no_cache), or I see its READY
    if (on)
      h.flags.fetch_or(kLastWanted, std::memory_order_seq_cst);
    else
      h.flags.fetch_and(std::uint8_t(~kLastWanted), std::memory_order_seq_cst);
    if (fills(a, b.id, b.seq)) return 0;  // else published meanwhile: set it in the word, too
  }
  if (!holds_ready(a, b.id, b.seq)) return -KVSHM_ENOTMINE;
  if (KVSHM_BROKEN(no_cache_beside)) {
    on ? h.flags.fetch_or(kLastWanted) : h.flags.fetch_and(std::uint8_t(~kLastWanted));
    return 0;
  }
  // A duplicate's or private block's last release always closes it.
  if (!on && (h.flags.load(std::memory_order_relaxed) & (kDuplicate | kPrivate))) return 0;
  word_t w = h.word.load(std::memory_order_relaxed);
  // Only while my bit is in it: READY_LAST without a holder would never be closed.
  while (is_ready(w) && (w & a.me)) {
    KVSHM_STEP("nocache.before");
    // M:dup.12
    if (h.word.compare_exchange_weak(w, with_state(w, on ? kReadyLast : kReady),
                                     std::memory_order_acq_rel)) {
      KVSHM_STEP("nocache.set");
      return 0;
    }
  }
  return -KVSHM_ENOTMINE;  // given back by another thread meanwhile
}

}  // namespace kvshm
