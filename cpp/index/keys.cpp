// SPDX-License-Identifier: Apache-2.0
#include "keys.hpp"

#include <bit>

namespace kvshm {
namespace {

enum : uint8_t { from_tokens = 1, from_hash = 2 };  // first byte of what is hashed

void copy_or_zero(uint8_t to[16], const uint8_t* from) noexcept {
  if (from)
    std::memcpy(to, from, 16);
  else
    std::memset(to, 0, 16);
}

void put_tokens(digest& d, const uint32_t* tokens, uint32_t count) noexcept {
  if constexpr (std::endian::native == std::endian::little) {
    d.bytes(tokens, size_t(count) * 4);
  } else {
    for (uint32_t i = 0; i < count; i++) d.u32(tokens[i]);
  }
}

}  // namespace

void extra_digest(const uint8_t key[identity_key_bytes], std::span<const kvshm_extra> items,
                  uint8_t out[16]) noexcept {
  if (items.empty()) {
    std::memset(out, 0, 16);
    return;
  }
  digest d("kvshm.v1.extra", 16, {key, identity_key_bytes});
  for (const kvshm_extra& item : items) {
    d.u32(item.type);
    d.u32(item.length);
    d.bytes(item.data, item.length);
  }
  d.finish(out);
  never_zero(out);
}

token_chain::token_chain(const uint8_t key[identity_key_bytes], const uint8_t* extra,
                         const uint8_t* parent) noexcept
    : base_("kvshm.v1.token", key_bytes, {key, identity_key_bytes}) {
  base_.u8(from_tokens);
  set_extra(extra);
  copy_or_zero(last_, parent);
}

void token_chain::set_extra(const uint8_t* extra) noexcept { copy_or_zero(extra_, extra); }

const uint8_t* token_chain::append(const uint32_t* tokens, uint32_t count) noexcept {
  digest d = base_;
  d.bytes(last_, key_bytes);
  d.u32(count);
  put_tokens(d, tokens, count);
  d.bytes(extra_, 16);
  d.finish(last_);
  never_zero(last_);
  return last_;
}

void keys_from_tokens(const uint8_t key[identity_key_bytes], const uint8_t* extra,
                      const uint8_t* parent, const uint32_t* tokens, uint32_t block_tokens,
                      size_t n, uint8_t (*out)[key_bytes]) noexcept {
  token_chain chain(key, extra, parent);
  for (size_t i = 0; i < n; i++)
    std::memcpy(out[i], chain.append(tokens + i * block_tokens, block_tokens), key_bytes);
}

void keys_from_hashes(const uint8_t key[identity_key_bytes], const uint8_t* extra,
                      const void* hashes, size_t hash_bytes, size_t n,
                      uint8_t (*out)[key_bytes]) noexcept {
  // SipHash takes 16 bytes of key: a subkey of the identity's, for this purpose only.
  uint8_t subkey[crypto_shorthash_siphashx24_KEYBYTES];
  digest("kvshm.v1.bind", sizeof subkey, {key, identity_key_bytes}).finish(subkey);

  constexpr size_t head = 1 + 16 + 4;
  uint8_t message[head + max_hash_bytes];
  message[0] = from_hash;
  copy_or_zero(message + 1, extra);
  for (int i = 0; i < 4; i++) message[17 + i] = uint8_t(hash_bytes >> 8 * i);
  const uint8_t* in = static_cast<const uint8_t*>(hashes);
  for (size_t i = 0; i < n; i++) {
    std::memcpy(message + head, in + i * hash_bytes, hash_bytes);
    crypto_shorthash_siphashx24(out[i], message, head + hash_bytes, subkey);
    never_zero(out[i]);
  }
}

}  // namespace kvshm
