#include "tier/record.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvshm::tier {

std::uint64_t self_check(const Record& r, std::uint64_t slot) {
  return XXH3_64bits_withSeed(&r, offsetof(Record, self), slot);
}

void payload_check(const void* data, std::uint64_t bytes, std::uint64_t out[2]) {
  const XXH128_hash_t h = XXH3_128bits(data, bytes);
  out[0] = h.low64;
  out[1] = h.high64;
}

std::uint64_t superblock_check(const Superblock& s) {
  return XXH3_64bits(&s, offsetof(Superblock, check));
}

}  // namespace kvshm::tier
