// SPDX-License-Identifier: Apache-2.0
// The arenas that are tortured, and their keys: chains of blocks, and heads of objects.
#pragma once
#include <kvshm.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace torture {

struct Shape {
  const char* name;
  std::uint32_t blocks, block_bytes;
  std::uint32_t chains, length;  // keys of ordinary blocks: that many chains of that length
  std::uint32_t objects;         // keys of objects
  unsigned weight;               // how often, among the others
};

const std::vector<Shape>& shapes();
const Shape* shape_named(const std::string& name);

using block_key = std::array<std::uint8_t, KVSHM_KEY_BYTES>;

block_key chain_key(std::uint32_t chain, std::uint32_t place);
block_key object_key(std::uint32_t n);
bool is_chain_key(const Shape& shape, const block_key& key);

}  // namespace torture
