// SPDX-License-Identifier: Apache-2.0
#include "copy_loops.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bench {
namespace {

void plain(char* to, const char* from, std::size_t n) { std::memcpy(to, from, n); }

#if defined(__x86_64__)
template <int kAhead>
inline void fetch(const char* from) {
  if constexpr (kAhead > 0) _mm_prefetch(from + kAhead, _MM_HINT_NTA);
}

template <int kAhead>  // bytes that the prefetch runs ahead; 0: leave it to the hardware
__attribute__((target("avx512f"))) void stream512(char* to, const char* from, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 256)
    for (std::size_t j = i; j < i + 256; j += 64) {
      fetch<kAhead>(from + j);
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + j), _mm512_loadu_si512(from + j));
    }
  _mm_sfence();
}

// Four loads, then four stores.
template <int kAhead>
__attribute__((target("avx512f"))) void grouped512(char* to, const char* from, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 256) {
    __m512i v[4];
    for (int j = 0; j < 4; j++) {
      fetch<kAhead>(from + i + 64 * j);
      v[j] = _mm512_loadu_si512(from + i + 64 * j);
    }
    for (int j = 0; j < 4; j++)
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 64 * j), v[j]);
  }
  _mm_sfence();
}

template <int kAhead>
__attribute__((target("avx2"))) void stream256(char* to, const char* from, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 64) {
    fetch<kAhead>(from + i);
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), b);
  }
  _mm_sfence();
}
#endif

}  // namespace

std::vector<CopyLoop> copy_loops() {
  std::vector<CopyLoop> loops = {{"memcpy", plain, false}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    loops.push_back({"avx512", stream512<0>, true});
    loops.push_back({"avx512 +512", stream512<512>, true});
    loops.push_back({"avx512 +1024", stream512<1024>, true});
    loops.push_back({"avx512 +2048", stream512<2048>, true});
    loops.push_back({"avx512 by four +1024", grouped512<1024>, true});
    loops.push_back({"avx512 by four +2048", grouped512<2048>, true});
  }
  if (__builtin_cpu_supports("avx2")) {
    loops.push_back({"avx2", stream256<0>, true});
    loops.push_back({"avx2 +1024", stream256<1024>, true});
  }
#endif
  return loops;
}

}  // namespace bench
