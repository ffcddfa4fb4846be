// Which entries of a bucket have a tag: one bit each, found without a branch that would wait for
// the bucket to come from memory. A hint: the caller loads the entry itself.
#pragma once
#include <atomic>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "arena/layout.hpp"

namespace kvshm {

// Who checks every access of an atomic (ThreadSanitizer, tests/weak) sees the plain loop.
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__) && !defined(KVSHM_EVERY_ACCESS)
inline unsigned with_tag(const std::atomic<std::uint64_t>* bucket, std::uint32_t tag) {
  static_assert(kIndexWays == 8 && sizeof *bucket == 8);
  const __m128i want = _mm_set1_epi32(int(tag));
  const auto four = [&](int i) {  // the upper halves of four entries, compared
    const auto* two = reinterpret_cast<const __m128*>(bucket) + i;
    return _mm_cmpeq_epi32(want, _mm_castps_si128(_mm_shuffle_ps(two[0], two[1], 0xdd)));
  };
  const __m128i eight = _mm_packs_epi32(four(0), four(2));
  return unsigned(_mm_movemask_epi8(_mm_packs_epi16(eight, _mm_setzero_si128())));
}
#else
inline unsigned with_tag(const std::atomic<std::uint64_t>* bucket, std::uint32_t tag) {
  unsigned bits = 0;
  for (unsigned i = 0; i < kIndexWays; i++)
    bits |= unsigned((bucket[i].load(std::memory_order_relaxed) >> 32) == tag) << i;
  return bits;
}
#endif

}  // namespace kvshm
