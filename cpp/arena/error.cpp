#include "arena/error.hpp"

#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "kvshm.h"

namespace kvshm {
thread_local constinit ThreadState thread_state __attribute__((tls_model("initial-exec")));
namespace {
thread_local char message[640];
std::atomic<kvshm_log_fn> log_fn{nullptr};
std::atomic<void*> log_user{nullptr};
}  // namespace

int fail(int code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::vsnprintf(message, sizeof message, format, args);
  va_end(args);
  thread_state.has_error = true;
  return code;
}

const char* last_error() { return thread_state.has_error ? message : ""; }

void log_line(int level, const char* format, ...) {
  kvshm_log_fn fn = log_fn.load(std::memory_order_acquire);
  if (!fn) return;
  char line[640];
  va_list args;
  va_start(args, format);
  std::vsnprintf(line, sizeof line, format, args);
  va_end(args);
  fn(level, line, log_user.load(std::memory_order_relaxed));
}

}  // namespace kvshm

extern "C" void kvshm_set_log(kvshm_log_fn fn, void* user) {
  kvshm::log_fn.store(nullptr, std::memory_order_release);
  kvshm::log_user.store(user, std::memory_order_relaxed);
  kvshm::log_fn.store(fn, std::memory_order_release);
}
