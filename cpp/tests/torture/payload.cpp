// SPDX-License-Identifier: Apache-2.0
#include "payload.hpp"

#include <cstring>

#include "random.hpp"

namespace torture {
namespace {

std::uint64_t base_of(const block_key& key, std::uint64_t life) {
  std::uint64_t lo;
  std::memcpy(&lo, key.data(), 8);
  return mix(lo ^ life * 0x100000001b3ULL);
}

}  // namespace

void write_slice(void* block, std::uint32_t block_bytes, const block_key& key, std::uint64_t seq,
                 std::uint32_t part, std::uint32_t parts) {
  const std::uint32_t words = block_bytes / 8;
  const std::uint64_t base = base_of(key, seq);
  auto* p = static_cast<std::uint64_t*>(block);
  for (std::uint32_t i = words * part / parts; i < words * (part + 1) / parts; i++)
    p[i] = mix(base + i);
}

std::int64_t wrong_word(const void* block, std::uint32_t block_bytes, const block_key& key,
                        std::uint64_t seq) {
  const std::uint64_t base = base_of(key, seq);
  const auto* p = static_cast<const std::uint64_t*>(block);
  for (std::uint32_t i = 0; i < block_bytes / 8; i++)
    if (p[i] != mix(base + i)) return i;
  return -1;
}

std::vector<std::uint8_t> object_bytes(const block_key& key, std::uint64_t put, std::uint64_t n) {
  std::vector<std::uint8_t> bytes(n);
  const std::uint64_t base = base_of(key, put);
  std::memcpy(bytes.data(), &put, 8);
  for (std::uint64_t i = 8; i < n; i++) bytes[i] = std::uint8_t(mix(base + i / 8) >> i % 8 * 8);
  return bytes;
}

bool object_right(const block_key& key, const std::vector<std::uint8_t>& bytes) {
  if (bytes.size() < 8) return false;
  std::uint64_t put;
  std::memcpy(&put, bytes.data(), 8);
  return bytes == object_bytes(key, put, bytes.size());
}

}  // namespace torture
