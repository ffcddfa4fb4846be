// Memory that the library must not touch, told to AddressSanitizer. No effect in other builds.
#pragma once
#include <cstddef>
#include <cstdint>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVSHM_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define KVSHM_ASAN 1
#endif

#ifdef KVSHM_ASAN
#include <sanitizer/asan_interface.h>
#define KVSHM_UNCHECKED __attribute__((no_sanitize("address")))
#else
#define KVSHM_UNCHECKED
#endif

namespace kvshm_fuzz {

inline void poison(const void* p, std::size_t n) {
#ifdef KVSHM_ASAN
  if (n) __asan_poison_memory_region(p, n);
#else
  (void)p, (void)n;
#endif
}
inline void unpoison(const void* p, std::size_t n) {
#ifdef KVSHM_ASAN
  if (n) __asan_unpoison_memory_region(p, n);
#else
  (void)p, (void)n;
#endif
}
// For the harness, which damages and compares the forbidden parts, too: memcpy and memcmp are
// checked.
KVSHM_UNCHECKED inline void raw_copy(void* to, const void* from, std::size_t n) {
  auto* t = static_cast<volatile std::uint8_t*>(to);
  auto* f = static_cast<const volatile std::uint8_t*>(from);
  if (((std::uintptr_t(t) | std::uintptr_t(f)) & 7) == 0)
    for (; n >= 8; n -= 8, t += 8, f += 8)
      *reinterpret_cast<volatile std::uint64_t*>(t) =
          *reinterpret_cast<const volatile std::uint64_t*>(f);
  for (std::size_t i = 0; i < n; i++) t[i] = f[i];
}
KVSHM_UNCHECKED inline std::size_t raw_difference(const void* a, const void* b, std::size_t n) {
  auto* x = static_cast<const volatile std::uint64_t*>(a);
  auto* y = static_cast<const volatile std::uint64_t*>(b);
  for (std::size_t i = 0; i < n / 8; i++)
    if (x[i] != y[i]) return i * 8;
  return n;
}

}  // namespace kvshm_fuzz
