// A condition with time limits that no step of the clock moves.
#pragma once
#include <pthread.h>
#include <time.h>

#include <cstdint>
#include <mutex>

namespace kvshm {

class Condition {
 public:
  Condition() {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&cond_, &attr);
    pthread_condattr_destroy(&attr);
  }
  Condition(const Condition&) = delete;
  ~Condition() { pthread_cond_destroy(&cond_); }
  // Until somebody wakes, or deadline_ms of CLOCK_MONOTONIC: false.
  bool wait(std::unique_lock<std::mutex>& lock, std::int64_t deadline_ms) {
    const struct timespec t = {time_t(deadline_ms / 1000), long(deadline_ms % 1000) * 1000000};
    return pthread_cond_timedwait(&cond_, lock.mutex()->native_handle(), &t) == 0;
  }
  void wake() { pthread_cond_broadcast(&cond_); }
  void wake_one() { pthread_cond_signal(&cond_); }

 private:
  pthread_cond_t cond_;
};

// A thread that takes no signal of its process. False: the system gives none.
bool start_quiet_thread(pthread_t* thread, const char* name, void* (*run)(void*), void* arg);

}  // namespace kvshm
