#include "arena/solo.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace kvshm {
namespace {

constexpr std::chrono::microseconds kNap{20};

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

bool can_be_alone() {
#if defined(__SANITIZE_THREAD__)
  return false;
#else
  return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
#endif
}

}  // namespace

Solo::Solo() {
  if (!can_be_alone()) never();
}

bool Solo::claim_or_end(const void* me, std::uint32_t limit_ms) {
  const void* nobody = nullptr;
  if (owner_.compare_exchange_strong(nobody, me, std::memory_order_acq_rel)) return true;
  return nobody == me || end(limit_ms);
}

bool Solo::end(std::uint32_t limit_ms) {
  using std::chrono::milliseconds;
  const auto until = std::chrono::steady_clock::now() + milliseconds(limit_ms);
  // Tried, not waited for: ThreadSanitizer does not know how a timed_mutex is locked by the clock.
  std::unique_lock<std::mutex> lock(ending_, std::try_to_lock);
  while (!lock.owns_lock()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kNap);
    lock.try_lock();
  }
  if (state_.load(std::memory_order_relaxed) == kEnded) return true;
  state_.store(kEnding, std::memory_order_seq_cst);
  if (!membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return false;
  // acquire: pairs with leave()
  while (calls_.load(std::memory_order_acquire)) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kNap);
  }
  state_.store(kEnded, std::memory_order_release);
  return true;
}

}  // namespace kvshm
