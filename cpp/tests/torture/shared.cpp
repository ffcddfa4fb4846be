// SPDX-License-Identifier: Apache-2.0
#include "shared.hpp"

#include <sys/mman.h>

#include <cstdarg>
#include <cstdio>
#include <new>

namespace torture {

Shared* make_shared() {
  void* p =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? nullptr : new (p) Shared();
}

void violation(Shared& s, const char* format, ...) {
  const std::uint32_t n = s.told.fetch_add(1);
  if (n < kMaxViolations) {
    va_list args;
    va_start(args, format);
    std::vsnprintf(s.texts[n], sizeof s.texts[n], format, args);
    va_end(args);
  }
  s.violations.fetch_add(1, std::memory_order_release);  // after its text
}

}  // namespace torture
