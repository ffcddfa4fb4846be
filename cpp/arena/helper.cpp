// The helper thread: wakes rarely, probes the slots in use, reaps the dead, and steps the policy's
// controller where this process leads it. Blocks all signals.
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "arena/attach.hpp"
#include "arena/lock.hpp"
#include "arena/slots.hpp"
#include "blocks/tenants.hpp"
#include "evict/controller.hpp"

namespace kvshm {
namespace {
constexpr std::uint32_t kRecountMs = 60000;  // hints that nobody's death has put off

constexpr std::uint32_t kLeastMs = 20;

void* run(void* arg) {
  Arena& a = *static_cast<Arena*>(arg);
  std::unique_lock<std::mutex> lock(a.helper_mutex);
  std::uint32_t wait_ms = a.reap_ms;
  std::int64_t reap_at = 0;
  while (!a.helper_stop) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += wait_ms / 1000;
    t.tv_nsec += long(wait_ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&a.helper_wake, a.helper_mutex.native_handle(), &t);
    if (a.helper_stop) break;
    lock.unlock();
    if (!a.sb->dead.load(std::memory_order_relaxed)) {
      if (now_ms() >= reap_at) {
        reap_dead(a, nullptr);
        refresh_limits(a);
        if (limits(a)) recount(a, kRecountMs);
        reap_at = now_ms() + a.reap_ms;
      }
      // A ring that was more than half full is looked at sooner.
      wait_ms = step_controller(a) > kTouchRing / 2 ? wait_ms / 2 : a.reap_ms;
      if (wait_ms < kLeastMs) wait_ms = a.reap_ms < kLeastMs ? a.reap_ms : kLeastMs;
    }
    lock.lock();
  }
  return nullptr;
}

}  // namespace

void start_helper(Arena& a) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&a.helper_wake, &attr);
  pthread_condattr_destroy(&attr);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  a.helper_runs = pthread_create(&a.helper, nullptr, run, &a) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (a.helper_runs)
    pthread_setname_np(a.helper, "kvshm-helper");
  else
    log_line(KVSHM_LOG_WARN, "arena %s: no helper thread; call kvshm_tick()", a.name.c_str());
}

void stop_helper(Arena& a) {
  if (!a.helper_runs) return;
  {
    std::lock_guard<std::mutex> lock(a.helper_mutex);
    a.helper_stop = true;
    pthread_cond_signal(&a.helper_wake);
  }
  pthread_join(a.helper, nullptr);
  pthread_cond_destroy(&a.helper_wake);
  a.helper_runs = false;
}

}  // namespace kvshm
