// Errors: a negative code, and for people one line per thread that says what was wanted, what was
// found and what to do.
#pragma once

namespace kvshm {

// What a thread has for itself. initial-exec: eight bytes, read at every call.
struct ThreadState {
  bool has_error = false;
};
extern thread_local constinit ThreadState thread_state __attribute__((tls_model("initial-exec")));

// Remembers the text for kvshm_last_error() and returns code.
int fail(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* last_error();
inline void forget_error() { thread_state.has_error = false; }

void log_line(int level, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace kvshm
