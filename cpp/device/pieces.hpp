// How the blocks' bytes are cut for a device driver. A cut lies between two blocks and between two
// pages: a driver registers whole pages, so that two pieces in one page would be an overlap.
#pragma once
#include <cstddef>
#include <cstdint>

#include "arena/arena.hpp"

namespace kvshm {

struct Piece {
  std::uint32_t first, blocks;
  bool foreign;  // registered by somebody else: never undone by us
};

struct Span {
  std::byte* at;
  std::size_t bytes;  // whole pages, the last one's rest included
};

// Blocks between two possible cuts.
std::uint32_t blocks_per_unit(const Arena& a);
// The most that fit into `bytes`, at least one unit; a multiple of the unit.
std::uint32_t blocks_per_piece(const Arena& a, std::uint64_t bytes);
Span span_of(const Arena& a, std::uint32_t first, std::uint32_t blocks);
// Bytes of the blocks themselves.
inline std::uint64_t bytes_of(const Arena& a, const Piece& p) {
  return std::uint64_t{p.blocks} * a.block_bytes;
}

}  // namespace kvshm
