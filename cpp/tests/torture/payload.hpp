// SPDX-License-Identifier: Apache-2.0
// What blocks and objects hold, so that a wrong byte is seen.
#pragma once
#include <cstdint>
#include <vector>

#include "shape.hpp"

namespace torture {

// Unseen by ThreadSanitizer: a slice that one thread writes and another reads may have been
// published by another process, of which it knows nothing.
#define TORTURE_BETWEEN_PROCESSES __attribute__((no_sanitize("thread")))

// A function of key and life, word by word: the bytes of another key, and those of another life of
// the same key, are wrong. The slice `part` of `parts` of a block.
TORTURE_BETWEEN_PROCESSES
void write_slice(void* block, std::uint32_t block_bytes, const block_key& key, std::uint64_t seq,
                 std::uint32_t part, std::uint32_t parts);
// The first wrong word's index, or -1.
TORTURE_BETWEEN_PROCESSES
std::int64_t wrong_word(const void* block, std::uint32_t block_bytes, const block_key& key,
                        std::uint64_t seq);

// Of an object, whose put has a number of its own: it stands in front.
std::vector<std::uint8_t> object_bytes(const block_key& key, std::uint64_t put, std::uint64_t n);
bool object_right(const block_key& key, const std::vector<std::uint8_t>& bytes);

}  // namespace torture
