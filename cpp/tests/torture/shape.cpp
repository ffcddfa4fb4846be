// SPDX-License-Identifier: Apache-2.0
#include "shape.hpp"

#include <cstring>

#include "random.hpp"

namespace torture {

// Tiny ones for contention: every operation meets others, every allocation evicts. The large ones
// have several regions (of 4096 blocks) and words of the free map.
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"tiny4", 4, 128, 2, 3, 1, 12},       {"tiny8", 8, 256, 3, 4, 2, 16},
      {"tiny12", 12, 128, 4, 4, 2, 16},     {"tiny16", 16, 1024, 4, 6, 3, 16},
      {"small", 64, 256, 12, 8, 4, 12},     {"medium", 700, 128, 60, 16, 8, 8},
      {"regions", 9000, 64, 600, 20, 8, 4},
  };
  return all;
}

const Shape* shape_named(const std::string& name) {
  for (const Shape& s : shapes())
    if (s.name == name) return &s;
  return nullptr;
}

namespace {

block_key key_from(std::uint64_t n) {
  const std::uint64_t lo = mix(n) | 1, hi = mix(~n);
  block_key k;
  std::memcpy(k.data(), &lo, 8);
  std::memcpy(k.data() + 8, &hi, 8);
  return k;
}

}  // namespace

block_key chain_key(std::uint32_t chain, std::uint32_t place) {
  return key_from(std::uint64_t{chain} << 32 | place);
}

// Without a table: both threads of a worker ask.
bool is_chain_key(const Shape& shape, const block_key& key) {
  std::uint64_t hi;
  std::memcpy(&hi, key.data() + 8, 8);
  const std::uint64_t n = ~unmix(hi);
  return n >> 32 < shape.chains && std::uint32_t(n) < shape.length && key == key_from(n);
}

block_key object_key(std::uint32_t n) { return key_from(std::uint64_t{1} << 63 | n); }

}  // namespace torture
