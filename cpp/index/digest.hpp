// SPDX-License-Identifier: Apache-2.0
// BLAKE2b with a named purpose, fed with little-endian typed values.
//
// The purpose goes into BLAKE2b's personalisation, so that the same bytes hashed for two purposes
// never give related results. Nothing here allocates, locks or throws.
#pragma once

#include <sodium.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace kvshm {

// libsodium picks its fastest BLAKE2b here, once per process. Its result does not matter to us:
// without it the portable code runs and gives the same bytes.
inline void sodium_ready() noexcept {
  static const int once = sodium_init();
  (void)once;
}

class digest {
 public:
  // purpose: at most 16 bytes, zero padded. out_bytes: 16..64. key: empty or 16..64 bytes.
  digest(std::string_view purpose, size_t out_bytes, std::span<const uint8_t> key = {}) noexcept
      : out_bytes_(out_bytes) {
    sodium_ready();
    uint8_t personal[crypto_generichash_blake2b_PERSONALBYTES] = {};
    std::memcpy(personal, purpose.data(), purpose.size());
    crypto_generichash_blake2b_init_salt_personal(&state_, key.empty() ? nullptr : key.data(),
                                                  key.size(), out_bytes, nullptr, personal);
  }

  void bytes(const void* data, size_t length) noexcept {
    crypto_generichash_blake2b_update(&state_, static_cast<const uint8_t*>(data), length);
  }
  void u8(uint8_t value) noexcept { bytes(&value, 1); }
  void u32(uint32_t value) noexcept {
    const uint8_t le[4] = {uint8_t(value), uint8_t(value >> 8), uint8_t(value >> 16),
                           uint8_t(value >> 24)};
    bytes(le, sizeof le);
  }
  void finish(uint8_t* out) noexcept { crypto_generichash_blake2b_final(&state_, out, out_bytes_); }

 private:
  crypto_generichash_blake2b_state state_;
  size_t out_bytes_;
};

}  // namespace kvshm
