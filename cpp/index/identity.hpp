// SPDX-License-Identifier: Apache-2.0
// What a block's bytes depend on besides its tokens: the model identity, and the two digests of it.
// The encoding is specified in docs/keys.md; a change of it changes every key there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvshm {

struct identity_fields {
  std::string_view model, weights, dtype, layout, parallel, space;
  uint32_t block_tokens = 0;
  uint32_t epoch = 0;
  bool any_weights = false;  // they may be unknown; part of no digest
};

inline constexpr size_t identity_key_bytes = 32;
inline constexpr size_t fingerprint_bytes = 16;
// Longest text line, with its NUL: an identity that does not fit is refused, so that a message or
// a fixed field of this size always shows the whole of it.
inline constexpr size_t identity_text_bytes = 1024;

// Powers of two up to 1024, so that a position splits into block and offset by shift and mask.
constexpr bool block_tokens_valid(uint32_t n) noexcept {
  return n > 0 && n <= 1024 && (n & (n - 1)) == 0;
}

// 0, or a code with its text for kvshm_last_error(): -EINVAL: no model, no weights (and that is not
// allowed), no valid block_tokens, a field is not UTF-8 or contains NUL; -ENAMETOOLONG: its text needs more than identity_text_bytes.
int identity_check(const identity_fields& id) noexcept;

// For checked fields. key: epoch included. fingerprint: epoch left out, never all zero (an arena
// keeps zeros where it has no identity).
void identity_derive(const identity_fields& id, uint8_t key[identity_key_bytes],
                     uint8_t fingerprint[fingerprint_bytes]) noexcept;

// One line of ASCII JSON. Returns its length; writes it, with a NUL, only if that is < cap.
size_t identity_text(const identity_fields& id, char* buf, size_t cap) noexcept;

}  // namespace kvshm
