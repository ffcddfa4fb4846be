// The helper thread: wakes rarely, probes the slots in use, reaps the dead. Blocks all signals.
#include <errno.h>
#include <signal.h>
#include <time.h>

#include "arena/attach.hpp"
#include "arena/slots.hpp"
#include "blocks/tenants.hpp"

namespace kvshm {
namespace {
constexpr std::uint32_t kRecountMs = 60000;  // hints that nobody's death has put off

void* run(void* arg) {
  Arena& a = *static_cast<Arena*>(arg);
  std::unique_lock<std::mutex> lock(a.helper_mutex);
  while (!a.helper_stop) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += a.reap_ms / 1000;
    t.tv_nsec += long(a.reap_ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&a.helper_wake, a.helper_mutex.native_handle(), &t);
    if (a.helper_stop) break;
    lock.unlock();
    if (!a.sb->dead.load(std::memory_order_relaxed)) {
      reap_dead(a, nullptr);
      if (limits(a)) recount(a, kRecountMs);
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
