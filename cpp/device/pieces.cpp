#include "device/pieces.hpp"

#include <numeric>

namespace kvshm {

std::uint32_t blocks_per_unit(const Arena& a) {
  return std::uint32_t(kPage / std::gcd(a.block_bytes, kPage));
}

std::uint32_t blocks_per_piece(const Arena& a, std::uint64_t bytes) {
  const std::uint64_t unit = blocks_per_unit(a), all = (a.nblocks + unit - 1) / unit * unit;
  const std::uint64_t n = bytes / a.block_bytes / unit * unit;
  return std::uint32_t(n < unit ? unit : n > all ? all : n);
}

Span span_of(const Arena& a, std::uint32_t first, std::uint32_t blocks) {
  const std::uint64_t bytes = std::uint64_t{blocks} * a.block_bytes;
  return {a.data + std::uint64_t{first} * a.block_bytes, (bytes + kPage - 1) / kPage * kPage};
}

}  // namespace kvshm
