// SPDX-License-Identifier: Apache-2.0
// Keys of blocks: derived from tokens (chained), or bound from an engine's own block hashes.
// The byte layout is specified in docs/keys.md, with test vectors.
//
// Thread safety: everything here works on its arguments only; one token_chain belongs to one
// thread at a time. No allocation, no lock, no exception.
#pragma once

#include <kvshm.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "digest.hpp"
#include "identity.hpp"

namespace kvshm {

inline constexpr size_t key_bytes = 16;
// Bounds of an engine's hash: 8 = a 64-bit integer; shorter ones collide by chance alone.
inline constexpr size_t min_hash_bytes = 8, max_hash_bytes = 128;

// All zeros means "no key", "no extra" and "no identity", so a result that happens to be zero
// becomes 01 00 ... 00. Two inputs then share a value with probability 2^-127: no different from
// any other collision.
inline void never_zero(uint8_t value[16]) noexcept {
  uint8_t any = 0;
  for (int i = 0; i < 16; i++) any |= value[i];
  if (any == 0) value[0] = 1;
}

// Digest of what else tells blocks apart, in the given order; all zeros if there are no items.
void extra_digest(const uint8_t key[identity_key_bytes], std::span<const kvshm_extra> items,
                  uint8_t out[16]) noexcept;

// A chain of keys that grows block by block. parent: the key before the first block, NULL or zeros
// at the root. extra: as made by extra_digest, NULL = none.
class token_chain {
 public:
  token_chain(const uint8_t key[identity_key_bytes], const uint8_t* extra,
              const uint8_t* parent) noexcept;
  // The key of the next block; it stays readable as last() until the next call.
  const uint8_t* append(const uint32_t* tokens, uint32_t count) noexcept;
  const uint8_t* last() const noexcept { return last_; }
  void set_extra(const uint8_t* extra) noexcept;  // from the next block on

 private:
  digest base_;  // keyed, and fed with what all blocks begin with: copied for each block
  uint8_t extra_[16];
  uint8_t last_[key_bytes];
};

// Keys of the n blocks that lie one after the other in tokens.
void keys_from_tokens(const uint8_t key[identity_key_bytes], const uint8_t* extra,
                      const uint8_t* parent, const uint32_t* tokens, uint32_t block_tokens,
                      size_t n, uint8_t (*out)[key_bytes]) noexcept;

// Keys of n engine hashes of hash_bytes each. A key depends on its own hash alone: the engine's
// hashes are chained already.
void keys_from_hashes(const uint8_t key[identity_key_bytes], const uint8_t* extra,
                      const void* hashes, size_t hash_bytes, size_t n,
                      uint8_t (*out)[key_bytes]) noexcept;

}  // namespace kvshm
