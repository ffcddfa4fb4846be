#include "device/copy.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvshm {
namespace {

void plain(char* d, const char* s, std::size_t n, const char*) { std::memcpy(d, s, n); }

#if defined(__x86_64__)
// Where to prefetch from while byte i of n is copied: kAhead bytes on, and beyond the end of this
// run in the next one, which may lie anywhere.
constexpr std::size_t kAhead = 1024;  // found best on Zen 4
struct Ahead {
  std::size_t turn;
  const char *here, *there;
  Ahead(const char* s, std::size_t n, const char* next)
      : turn(n > kAhead ? n - kAhead : 0), here(s + kAhead), there(next - turn) {}
  const char* at(std::size_t i) const { return (i < turn ? here : there) + i; }
};

__attribute__((target("avx512f"))) void avx512(char* d, const char* s, std::size_t n,
                                               const char* next) {
  const Ahead ahead(s, n, next);
  std::size_t i = 0;
  for (; i + 256 <= n; i += 256) {
    const char* soon = ahead.at(i);
    _mm_prefetch(soon, _MM_HINT_NTA);
    _mm_prefetch(soon + 64, _MM_HINT_NTA);
    _mm_prefetch(soon + 128, _MM_HINT_NTA);
    _mm_prefetch(soon + 192, _MM_HINT_NTA);
    const __m512i a = _mm512_loadu_si512(s + i), b = _mm512_loadu_si512(s + i + 64);
    const __m512i c = _mm512_loadu_si512(s + i + 128), e = _mm512_loadu_si512(s + i + 192);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(d + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(d + i + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(d + i + 128), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(d + i + 192), e);
  }
  for (; i < n; i += 64) {
    _mm_prefetch(ahead.at(i), _MM_HINT_NTA);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(d + i), _mm512_loadu_si512(s + i));
  }
}

__attribute__((target("avx2"))) inline void line256(char* d, const char* s) {
  const __m256i* from = reinterpret_cast<const __m256i*>(s);
  __m256i* to = reinterpret_cast<__m256i*>(d);
  const __m256i a = _mm256_loadu_si256(from), b = _mm256_loadu_si256(from + 1);
  _mm256_stream_si256(to, a);
  _mm256_stream_si256(to + 1, b);
}

// Within a run the hardware looks ahead, better than we can (Zen 3); where the next one lies it
// cannot know: its first line early, for the page table, and some more on the way.
__attribute__((target("avx2"))) void avx2(char* d, const char* s, std::size_t n, const char* next) {
  constexpr std::size_t kEarly = 2048, kLines = 512;
  const std::size_t from = n > kEarly ? n - kEarly : 0, to = std::min(n, from + kLines);
  _mm_prefetch(next, _MM_HINT_NTA);
  std::size_t i = 0;
  for (; i < from; i += 64) line256(d + i, s + i);
  for (; i < to; i += 64) {
    _mm_prefetch(next + (i - from), _MM_HINT_NTA);
    line256(d + i, s + i);
  }
  for (; i < n; i += 64) line256(d + i, s + i);
}
#endif

const CopyVariant& variant() {
  static const CopyVariant& v = []() -> const CopyVariant& {
    for (const CopyVariant& c : copy_variants())
      if (c.works) return c;
    return copy_variants().back();
  }();
  return v;
}

}  // namespace

const char* stream_copy_variant() { return variant().name; }

std::span<const CopyVariant> copy_variants() {
  static const CopyVariant all[] = {
#if defined(__x86_64__)
      {"avx512", avx512, bool(__builtin_cpu_supports("avx512f"))},
      {"avx2", avx2, bool(__builtin_cpu_supports("avx2"))},
#endif
      {"plain", plain, true}};
  return all;
}

void stream_run_by(const CopyVariant& v, void* dst, const void* src, std::size_t n,
                   const void* next) {
  char* d = static_cast<char*>(dst);
  const char* s = static_cast<const char*>(src);
  const std::size_t head =
      std::min<std::size_t>((64 - reinterpret_cast<std::uintptr_t>(d) % 64) % 64, n);
  std::memcpy(d, s, head);
  d += head, s += head, n -= head;
  const std::size_t body = n & ~std::size_t{63};
  v.body(d, s, body, static_cast<const char*>(next));
  std::memcpy(d + body, s + body, n - body);
}

void stream_run(void* dst, const void* src, std::size_t n, const void* next) {
  stream_run_by(variant(), dst, src, n, next);
}

void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

void stream_copy_by(const CopyVariant& v, void* dst, const void* src, std::size_t n) {
  stream_run_by(v, dst, src, n, static_cast<const char*>(src) + n);
  stream_fence();
}

void stream_copy(void* dst, const void* src, std::size_t n) {
  if (!n) return;  // nothing may come from nowhere
  const CopyVariant& v = variant();
  if (n < kCached || v.body == plain)
    std::memcpy(dst, src, n);
  else
    stream_copy_by(v, dst, src, n);
}

}  // namespace kvshm
