// SPDX-License-Identifier: Apache-2.0
// Objects whose bytes can be checked.
#pragma once
#include <cerrno>
#include <memory>
#include <random>

#include "support.hpp"

namespace kvshm_test {

constexpr std::uint64_t kBlock = 256;
inline const block_key kKey = key_of(1);

using bytes_t = std::vector<unsigned char>;

// What version `v` of an object of n bytes holds; no two versions agree in any block.
inline bytes_t content(std::size_t n, unsigned v = 0) {
  std::mt19937_64 rng(1000003u * v + n);
  bytes_t out(n);
  for (auto& b : out) b = static_cast<unsigned char>(rng());
  return out;
}

struct Close {
  void operator()(kvshm_object* o) const { kvshm_object_close(o); }
};
using Object = std::unique_ptr<kvshm_object, Close>;

inline int create(kvshm_arena* a, std::uint64_t n, Object* out, const block_key& key = kKey,
                  const kvshm_fill_options* opts = nullptr) {
  kvshm_object* o = nullptr;
  const int rc = kvshm_object_create(a, key.data(), n, opts, &o);
  out->reset(o);
  return rc;
}

inline Object get(kvshm_arena* a, const block_key& key = kKey) {
  kvshm_object* o = nullptr;
  const int rc = kvshm_object_get(a, key.data(), &o);
  EXPECT_TRUE(rc == 0 || rc == -ENOENT) << kvshm_strerror(rc);
  EXPECT_EQ(rc == 0, o != nullptr);
  return Object(o);
}

inline bytes_t read_all(const Object& o) {
  bytes_t out(kvshm_object_bytes(o.get()));
  EXPECT_EQ(kvshm_object_read(o.get(), 0, out.data(), out.size()), 0) << kvshm_last_error();
  return out;
}

inline int put(kvshm_arena* a, const bytes_t& bytes, const block_key& key = kKey) {
  Object o;
  if (int rc = create(a, bytes.size(), &o, key)) return rc;
  if (int rc = kvshm_object_write(o.get(), 0, bytes.data(), bytes.size())) return rc;
  return kvshm_object_commit(o.get());
}

}  // namespace kvshm_test
