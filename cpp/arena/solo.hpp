// One thread alone: while a single thread uses a handle, its shortest calls (index/alone.hpp) take
// no locked operation on what is private to the process. What that saves is less the operations
// than the memory accesses of the next call, which they hold back.
//
// A biased lock, given up once and for good when a second thread comes:
//
//   owner    calls = calls + 1 (plain) ; compiler fence ; state == kAlone ? go on : step back
//   another  state = kEnding ; membarrier(PRIVATE_EXPEDITED) ; wait until calls == 0 ; kEnded
//
// The kernel's barrier runs on every processor that runs a thread of this process, so it orders
// the owner's two plain accesses for the other: either the owner sees kEnding, or the other sees
// its call (membarrier(2)). Where the kernel or a filter refuses membarrier, and under
// ThreadSanitizer, which does not know it, nobody is ever alone.
//
// Invariants
//   A1  a call that is not alone runs on only after share() or by the owner itself
//   A2  who is alone never waits, so ending it takes no longer than one such call
//   A3  the owner's plain stores come before leave(), and leave() before anybody's kEnded
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>

namespace kvshm {

class Solo {
 public:
  Solo();
  // True: alone, and leave() must follow.
  [[gnu::always_inline]] bool enter(const void* me) {
    if (owner_.load(std::memory_order_relaxed) != me) return false;
    step_calls<1>();
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (state_.load(std::memory_order_relaxed) == kAlone) [[likely]]
      return true;
    leave();
    return false;
  }
  [[gnu::always_inline]] void leave() {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    step_calls<-1>();
  }
  // Any call that is not alone: claims the handle for this thread, or ends another's being alone.
  // False: the owner did not come out of its call within limit_ms.
  bool share(const void* me, std::uint32_t limit_ms) {
    // acquire: pairs with the release in end(); the owner's plain stores come before it
    if (state_.load(std::memory_order_acquire) == kEnded) return true;
    if (owner_.load(std::memory_order_relaxed) == me) return true;
    return claim_or_end(me, limit_ms);
  }
  bool end(std::uint32_t limit_ms);
  // Before the first call: nobody is ever alone.
  void never() { state_.store(kEnded, std::memory_order_relaxed); }

 private:
  enum : std::uint32_t { kAlone, kEnding, kEnded };
  bool claim_or_end(const void* me, std::uint32_t limit_ms);
  // release (as every store of x86): whoever sees no call sees what the calls did
  template <int kBy>
  [[gnu::always_inline]] void step_calls() {
#if defined(__x86_64__)
    // One instruction; the compiler makes three of an atomic's load and store.
    __asm__ volatile("addl %1, %0" : "+m"(calls_) : "i"(kBy) : "memory", "cc");
#else
    calls_.store(calls_.load(std::memory_order_relaxed) + kBy, std::memory_order_release);
#endif
  }

  std::atomic<const void*> owner_{nullptr};
  std::atomic<std::uint32_t> state_{kAlone};
  std::atomic<std::uint32_t> calls_{0};  // of the owner alone
  std::mutex ending_;
};

// A counter with one writer.
[[gnu::always_inline]] inline void bump(std::atomic<std::uint64_t>& c) {
#if defined(__x86_64__)
  __asm__("addq $1, %0" : "+m"(c) : : "cc");
#else
  c.store(c.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
#endif
}

}  // namespace kvshm
