// Errors: a negative code, and for people one line per thread that says what was wanted, what was
// found and what to do.
#pragma once

namespace kvshm {

// Remembers the text for kvshm_last_error() and returns code.
int fail(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* last_error();
void forget_error();

void log_line(int level, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace kvshm
