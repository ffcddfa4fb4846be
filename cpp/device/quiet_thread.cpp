#include <signal.h>

#include "device/condition.hpp"

namespace kvshm {

bool start_quiet_thread(pthread_t* thread, const char* name, void* (*run)(void*), void* arg) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool runs = pthread_create(thread, nullptr, run, arg) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (runs) pthread_setname_np(*thread, name);
  return runs;
}

}  // namespace kvshm
