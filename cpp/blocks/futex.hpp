// Futexes: shared ones between processes, private ones between threads. No wait without a limit,
// and errno stays as it was.
#pragma once
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace kvshm {

inline void futex_wait(std::atomic<std::uint32_t>* word, std::uint32_t expected, unsigned limit_ms,
                       bool in_process = false) {
  struct timespec t = {time_t(limit_ms / 1000), long(limit_ms % 1000) * 1000000};
  const int saved = errno;
  syscall(SYS_futex, word, in_process ? FUTEX_WAIT_PRIVATE : FUTEX_WAIT, expected, &t, nullptr, 0);
  errno = saved;
}

inline void futex_wake_all(std::atomic<std::uint32_t>* word, bool in_process = false) {
  const int saved = errno;
  syscall(SYS_futex, word, in_process ? FUTEX_WAKE_PRIVATE : FUTEX_WAKE, INT32_MAX, nullptr,
          nullptr, 0);
  errno = saved;
}

}  // namespace kvshm
