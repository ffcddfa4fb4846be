#include "blocks/waiting.hpp"

#include <errno.h>

#include "arena/lock.hpp"
#include "arena/slots.hpp"
#include "blocks/close.hpp"
#include "blocks/futex.hpp"

namespace kvshm {
namespace {

// 1 still filling, 0 READY, -ENOENT.
int look(const Hot& h, kvshm_handle b) {
  const word_t w = h.word.load(std::memory_order_seq_cst);
  if (h.seq.load(std::memory_order_acquire) != b.seq) return -ENOENT;
  if (is_ready(w)) return 0;
  if (h.flags.load(std::memory_order_seq_cst) & kFailed) return -ENOENT;  // its fillers are dead
  return state(w) == kFilling ? 1 : -ENOENT;
}

}  // namespace

int wait_fill(Arena& a, kvshm_handle b, std::uint32_t timeout_ms) {
  Hot& h = a.hot[b.id];
  int now = look(h, b);
  if (now <= 0 || !timeout_ms) return now == 1 ? -ETIMEDOUT : now;
  a.count(kStat_waits_total);
  const std::int64_t deadline = now_ms() + timeout_ms;
  const AwaitedFill here(a.waits, b.id);  // before the bit: cancel finds the one or the other
  for (;;) {
    // Bit 0 tells wakers of us; the value with it is what we sleep on.
    KVSHM_STEP("wait.flag");
    // M:wait.1
    const std::uint32_t f = h.fut.fetch_or(1, std::memory_order_seq_cst) | 1;
    // M:wait.2
    now = look(h, b);
    if (now <= 0) return now;
    if (a.waits.cancelled.load(std::memory_order_seq_cst)) return -KVSHM_ECANCELED;
    if (a.sb->dead.load(std::memory_order_relaxed)) return -ESTALE;
    const std::int64_t left = deadline - now_ms();
    if (left <= 0) return -ETIMEDOUT;
    KVSHM_STEP("wait.sleep");
    // M:wait.3
    futex_wait(&h.fut, f, left < 30 ? unsigned(left) : 30);
    // M:wait.4
    if (h.fut.load(std::memory_order_relaxed) == f) reap_dead(a, nullptr);  // nobody woke us
  }
}

void cancel_waits(Arena& a, bool on) {
  a.waits.cancelled.store(on, std::memory_order_seq_cst);
  if (!on) return;
  wake_space(a);  // other processes' waiters only look again
  std::lock_guard<std::mutex> lock(a.waits.mutex);
  for (const AwaitedFill* f = a.waits.fills; f; f = f->next) wake_fill(a, f->id);
}

}  // namespace kvshm
