// SPDX-License-Identifier: Apache-2.0
// The C API of identity and keys: checks arguments, then calls cpp/index. Needs no arena.
#include "index/keys.hpp"

#include <kvshm.h>

#include <cerrno>
#include <limits>

#include "arena/error.hpp"
#include "index/identity.hpp"

namespace {

using kvshm::fail;

int null_argument() noexcept { return fail(-EINVAL, "a pointer is NULL where data is needed"); }

// 0 and the fields, or a negative code. A longer struct of a later header is taken only if what
// this library does not know is zero: to leave out a field would mix up two identities.
int read_identity(const kvshm_identity* id, kvshm::identity_fields& out) noexcept {
  if (!id) return null_argument();
  if (id->size < offsetof(kvshm_identity, flags) || id->size > 4096)
    return fail(-EINVAL, "identity: its size says %zu; use KVSHM_IDENTITY_INIT", id->size);
  const unsigned char* raw = reinterpret_cast<const unsigned char*>(id);
  for (size_t i = sizeof *id; i < id->size; i++)
    if (raw[i] != 0) return fail(-EINVAL, "identity: has fields that this library does not know");
  const auto text = [](const char* s) { return s ? std::string_view(s) : std::string_view(); };
  out = {text(id->model),  text(id->weights),  text(id->dtype),
         text(id->layout), text(id->parallel), text(id->space),
         id->block_tokens, id->epoch,          false};
  if (id->size >= sizeof *id) {
    if (id->zero || (id->flags & ~std::uint32_t{KVSHM_UNKNOWN_WEIGHTS}))
      return fail(-EINVAL, "identity: unknown flags %#x", unsigned(id->flags));
    out.any_weights = id->flags & KVSHM_UNKNOWN_WEIGHTS;
  }
  return kvshm::identity_check(out);
}

}  // namespace

extern "C" int kvshm_identity_derive(const kvshm_identity* id, uint8_t key[32],
                                     uint8_t fingerprint[16]) {
  kvshm::identity_fields fields;
  if (!key || !fingerprint) return null_argument();
  if (const int rc = read_identity(id, fields)) return rc;
  kvshm::identity_derive(fields, key, fingerprint);
  return 0;
}

extern "C" int64_t kvshm_identity_text(const kvshm_identity* id, char* buf, size_t cap) {
  kvshm::identity_fields fields;
  if (!buf && cap > 0) return null_argument();
  if (const int rc = read_identity(id, fields)) return rc;
  const size_t length = kvshm::identity_text(fields, buf, cap);
  if (length < cap) return int64_t(length);
  return fail(-ENOSPC, "identity: its text needs %zu bytes, given %zu", length + 1, cap);
}

extern "C" int kvshm_extra_digest(const uint8_t key[32], const kvshm_extra* items, size_t n,
                                  uint8_t out[16]) {
  if (!key || !out || (!items && n > 0)) return null_argument();
  for (size_t i = 0; i < n; i++) {
    if (items[i].type == 0) return fail(-EINVAL, "extra: item %zu has type 0", i);
    if (!items[i].data && items[i].length > 0) return null_argument();
  }
  kvshm::extra_digest(key, {items, n}, out);
  return 0;
}

extern "C" int64_t kvshm_keys_tokens(const uint8_t key[32], const uint8_t extra[16],
                                     const uint8_t parent[16], const uint32_t* tokens,
                                     size_t ntokens, uint32_t block_tokens, kvshm_key* out,
                                     size_t cap) {
  if (!key || (!tokens && ntokens > 0) || (!out && cap > 0)) return null_argument();
  if (!kvshm::block_tokens_valid(block_tokens))
    return fail(-EINVAL, "keys: block_tokens is %u; expected 1, 2, 4 ... 1024",
                unsigned(block_tokens));
  size_t n = ntokens / block_tokens;
  if (n > cap) n = cap;
  if (n > 0) kvshm::keys_from_tokens(key, extra, parent, tokens, block_tokens, n, out);
  return int64_t(n);
}

extern "C" int64_t kvshm_keys_hashes(const uint8_t key[32], const uint8_t extra[16],
                                     const void* hashes, size_t hash_len, size_t n,
                                     kvshm_key* out) {
  if (!key || ((!hashes || !out) && n > 0)) return null_argument();
  if (n == 0) return 0;  // whatever hash_len: who has no hashes does not know their length
  if (hash_len < kvshm::min_hash_bytes || hash_len > kvshm::max_hash_bytes)
    return fail(-EINVAL, "keys: a hash of %zu bytes; expected %zu to %zu", hash_len,
                kvshm::min_hash_bytes, kvshm::max_hash_bytes);
  if (n > size_t(std::numeric_limits<int64_t>::max()) / kvshm::max_hash_bytes)
    return fail(-EINVAL, "keys: %zu hashes cannot be in memory", n);
  kvshm::keys_from_hashes(key, extra, hashes, hash_len, n, out);
  return int64_t(n);
}
