// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace torture {

constexpr std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Its way back: multiplies by the inverses modulo 2^64.
constexpr std::uint64_t unmix(std::uint64_t x) {
  x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3ULL;
  x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089ULL;
  return (x ^ (x >> 30) ^ (x >> 60)) - 0x9e3779b97f4a7c15ULL;
}
static_assert(unmix(mix(0)) == 0 && unmix(mix(~0ULL)) == ~0ULL &&
              unmix(mix(1ULL << 63)) == 1ULL << 63);

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : at_(mix(seed)) {}
  std::uint64_t next() { return mix(at_++); }
  std::uint32_t below(std::uint32_t n) { return n ? std::uint32_t(next() % n) : 0; }
  std::uint32_t between(std::uint32_t low, std::uint32_t high) {
    return low + below(high - low + 1);
  }
  bool percent(unsigned p) { return below(100) < p; }
  // As many small ones as large ones: each power of two is as likely as the next.
  std::uint32_t spread(std::uint32_t most) {
    unsigned bits = 0;
    while (most >> (bits + 1)) bits++;
    const std::uint32_t low = 1u << below(bits + 1);
    const std::uint32_t v = low + below(low);
    return v < most ? v : most;
  }

 private:
  std::uint64_t at_;
};

}  // namespace torture
