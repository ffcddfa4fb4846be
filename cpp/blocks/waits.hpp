// The waits of this process that kvshm_cancel_waits ends. Only what waits looks at any of it.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

namespace kvshm {

class AwaitedFill;

struct Waits {
  // seq_cst: its store pairs with the waiter's bit in the wait word. Either the waiter, which sets
  // its bit first, sees the flag, or the canceller sees the bit and wakes it.
  std::atomic<bool> cancelled{false};
  std::mutex mutex;
  AwaitedFill* fills = nullptr;  // under `mutex`
};

// In the list for as long as a thread waits for the fill of `id`: which words to wake.
class AwaitedFill {
 public:
  AwaitedFill(Waits& waits, std::uint32_t id) : id(id), waits_(waits) {
    std::lock_guard<std::mutex> lock(waits_.mutex);
    next = waits_.fills;
    if (next) next->before_ = this;
    waits_.fills = this;
  }
  AwaitedFill(const AwaitedFill&) = delete;
  ~AwaitedFill() {
    std::lock_guard<std::mutex> lock(waits_.mutex);
    (before_ ? before_->next : waits_.fills) = next;
    if (next) next->before_ = before_;
  }
  const std::uint32_t id;
  AwaitedFill* next = nullptr;

 private:
  Waits& waits_;
  AwaitedFill* before_ = nullptr;
};

}  // namespace kvshm
